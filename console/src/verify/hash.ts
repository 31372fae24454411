/** The hashes of the record: of a request, of a card, and of the list of cards that a call read. All are BLAKE3. */
import { blake3 } from '@noble/hashes/blake3.js'
import { bytesToHex, hexToBytes, utf8ToBytes } from '@noble/hashes/utils.js'
import type { Schemas } from '../api'
import { canonical } from './canonical'

export type Reading = Schemas['Reading']
export type Receipt = Schemas['Receipt']

/** Hashes bytes while they arrive. */
export function hasher() {
  const hash = blake3.create({})
  return {
    update: (bytes: Uint8Array) => void hash.update(bytes),
    hex: () => bytesToHex(hash.digest()),
  }
}

export function hashBytes(bytes: Uint8Array): string {
  return bytesToHex(blake3(bytes))
}

/** Returns the id that the record gives to a call that only the provider has named. As `id_of` in crates/context/src/record/shown.rs. */
export function idOf(named: string): string {
  const hex = bytesToHex(blake3(utf8ToBytes(named)).subarray(0, 16))
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
}

/**
 * Hashes what a card says: its salt, if it has one, and the canonical form of six fields. Cards that are shared by their content (`sys.*`)
 * have no salt.
 */
export function hashCard(card: Reading): string {
  const { author_id, role, type } = card.metadata ?? { author_id: null, role: null, type: null }
  const calls = card.tool_calls ?? []
  const form = canonical({
    author_id: author_id ?? null,
    content: card.content,
    role,
    tool_call_id: card.tool_call_id ?? null,
    tool_calls: calls.length === 0 ? null : calls,
    type,
  })
  const hash = blake3.create({})
  if (card.salt) hash.update(hexToBytes(card.salt))
  hash.update(utf8ToBytes(`waybill.card.v1\n${form}`))
  return bytesToHex(hash.digest())
}

/** The cards that a receipt names one by one, in the order in which they are hashed. */
export function namedCards(receipt: Receipt): string[] {
  const { system_prompt_card_id, tools_card_id, session_summary_card_id, blocks, query_card_ids } = receipt
  const first = [system_prompt_card_id, tools_card_id, session_summary_card_id].filter(id => id != null)
  const last = receipt.recorded ? [receipt.recorded.skeleton_card_id] : []
  return [...first, ...blocks.map(block => block.card_id), ...query_card_ids, ...last]
}

/** Hashes the hashes of all cards that a call read: those that are named, then the history and the steps, each with its length before it. */
export function hashList(named: string[], history: string[], steps: string[]): string {
  const hash = blake3.create({})
  for (const one of named) hash.update(hexToBytes(one))
  for (const list of [history, steps]) {
    const length = new DataView(new ArrayBuffer(8))
    length.setBigUint64(0, BigInt(list.length), true)
    hash.update(new Uint8Array(length.buffer))
    for (const one of list) hash.update(hexToBytes(one))
  }
  return bytesToHex(hash.digest())
}
