/**
 * Checks what a model call saw against its receipt, with what the server gives: the bytes of the request, every card that was read, and the
 * order of the cards. Only what was computed here counts as verified.
 */
import { hashCard, hasher, hashList, namedCards, type Reading, type Receipt } from './hash'
import type { CardFact, Check } from './result'

export interface Placed {
  place: number
  origin: { box_id: string; seq: number }
  reading: Reading
}

/** What the server gives. */
export interface Server {
  request(): AsyncIterable<Uint8Array>
  cards(ids: string[]): Promise<Reading[]>
  /** Cards at the places `from ..= upto` of a box, in order. */
  places(span: { box_id: string; from: number; upto: number }): Promise<Placed[]>
}

/** Cards that messages name, each with the hash that the message gives. */
export type Sources = readonly (readonly [string, string])[]

export class NotRenderable extends Error {}

export interface Watcher {
  checks(checks: Check[]): void
  facts?(facts: CardFact[]): void
  /** The request, whole. */
  bytes?(bytes: Uint8Array): void
}

const detailOf = (error: unknown) => (error instanceof Error ? error.message : String(error))

function compare(what: Check['what'], expected: string, computed: string): Check {
  return { what, expected, computed, ok: expected === computed }
}

async function checkRequest(receipt: Receipt, server: Server, watcher: Watcher) {
  const hash = hasher()
  const chunks: Uint8Array[] = []
  let length = 0
  try {
    for await (const chunk of server.request()) {
      hash.update(chunk)
      chunks.push(chunk)
      length += chunk.length
    }
  } catch (error) {
    const why = error instanceof NotRenderable ? 'not_renderable' : 'failed'
    const { request_hash } = receipt
    watcher.checks([
      { what: 'request', expected: request_hash, computed: null, ok: null, why, detail: detailOf(error) },
    ])
    return
  }
  const compared = compare('request', receipt.request_hash, hash.hex())
  const withheld = receipt.recorded?.withheld ?? []
  // The hash is that of the bytes with the credentials, which were never stored.
  const isPart = !compared.ok && withheld.length > 0
  watcher.checks([isPart ? { ...compared, ok: null, why: 'withheld', detail: withheld.join(', ') } : compared])
  const whole = new Uint8Array(length)
  let at = 0
  for (const chunk of chunks) {
    whole.set(chunk, at)
    at += chunk.length
  }
  watcher.bytes?.(whole)
}

/** Checks one card: what it says against its own hash, and against each hash that a message names. */
export function checkCard(card: Reading, named: readonly string[] = []): Check {
  const expected = named.find(hash => hash !== card.hash) ?? card.hash
  const of = { what: 'card' as const, cardId: card.card_id, expected }
  if (card.state !== 'live') {
    if (card.hash !== expected) return { ...of, computed: null, ok: false, why: 'gone' }
    return { ...of, computed: null, ok: null, why: 'gone', ...(card.why ? { detail: card.why } : {}) }
  }
  let computed: string
  try {
    computed = hashCard(card)
  } catch (error) {
    // Its salt is no salt, or it has another shape: that is not what was recorded.
    return { ...of, computed: null, ok: false, detail: detailOf(error) }
  }
  return { ...of, computed, ok: computed === expected && computed === card.hash }
}

export function factOf(card: Reading, list: CardFact['list'], boxId: string | null, placed?: Placed): CardFact {
  return {
    cardId: card.card_id,
    list,
    boxId,
    place: placed?.place ?? null,
    writtenIn: placed?.origin.box_id ?? null,
    nTokens: card.n_tokens ?? null,
    type: card.metadata?.type ?? null,
    author: card.metadata?.author_id ?? null,
    role: card.metadata?.role ?? null,
    origin: card.origin ?? null,
    createdAt: card.created_at ?? null,
    gone: card.state === 'live' ? null : (card.why ?? 'gone'),
  }
}

/** Keeps each card at the first of its places. */
function withoutRepeats(cards: Placed[]): Placed[] {
  const seen = new Set<string>()
  return cards.filter(({ reading }) => !seen.has(reading.card_id) && seen.add(reading.card_id))
}

/** Keeps the cards that were asked for, each once: of others the receipt says nothing. */
function asked(ids: readonly string[], found: Reading[]): Reading[] {
  const left = new Set(ids)
  return found.filter(card => left.delete(card.card_id))
}

/** Checks that cards stand at the places that were asked for, one behind the other. */
function areInPlace({ from, upto }: { from: number; upto: number }, placed: Placed[]): boolean {
  return placed.every(({ place }, n) => place >= from && place <= upto && (n === 0 || place > placed[n - 1]!.place))
}

async function checkCards(receipt: Receipt, named: string[], pairs: Sources, server: Server, watcher: Watcher) {
  const sources = new Map<string, string[]>()
  for (const [cardId, hash] of pairs) sources.set(cardId, [...(sources.get(cardId) ?? []), hash])
  const known = new Map<string, Reading>()
  const checked = new Set<string>()
  // A card may stand in two lists; it is hashed each time it was read, because the second may say something else.
  const check = (readings: Reading[]) => {
    const checks = readings.map(card => checkCard(card, sources.get(card.card_id)))
    for (const card of readings) checked.add(card.card_id)
    if (checks.length > 0) watcher.checks(checks)
  }
  const hashes: Record<'history' | 'steps', string[]> = { history: [], steps: [] }
  try {
    const found = asked(named, await server.cards([...new Set(named)]))
    for (const card of found) known.set(card.card_id, card)
    check(found)
    watcher.facts?.(found.map(card => factOf(card, 'named', null)))
    const spans = { history: receipt.history, steps: receipt.output.upto === 0 ? [] : [receipt.output] }
    for (const list of ['history', 'steps'] as const) {
      const read: Placed[] = []
      for (const span of spans[list]) {
        if (span.upto < span.from) continue
        const placed = await server.places(span)
        if (!areInPlace(span, placed)) {
          const of = { expected: receipt.cards_hash, computed: null, ok: false, why: 'out_of_place' as const }
          watcher.checks([{ what: 'list', ...of }])
          return
        }
        check(placed.map(one => one.reading))
        watcher.facts?.(placed.map(one => factOf(one.reading, list, span.box_id, one)))
        read.push(...placed)
      }
      hashes[list] = withoutRepeats(read).map(one => one.reading.hash)
    }
  } catch (error) {
    const of = { expected: receipt.cards_hash, computed: null, ok: null, why: 'failed' as const }
    watcher.checks([{ what: 'list', ...of, detail: detailOf(error) }])
    return
  }
  const missing = named.filter(id => !known.has(id))
  const lost = [...new Set(missing)].map((cardId): Check => {
    return {
      what: 'card',
      cardId,
      expected: sources.get(cardId)?.[0] ?? null,
      computed: null,
      ok: null,
      why: 'missing',
    }
  })
  const unlisted = [...sources].filter(([cardId]) => !checked.has(cardId) && !missing.includes(cardId))
  const stray = unlisted.map(([cardId, [expected = null]]): Check => {
    return { what: 'card', cardId, expected, computed: null, ok: false, why: 'not_listed' }
  })
  if (lost.length + stray.length > 0) watcher.checks([...lost, ...stray])
  if (missing.length > 0) {
    const of = { expected: receipt.cards_hash, computed: null, ok: null, why: 'missing' as const }
    watcher.checks([{ what: 'list', ...of, detail: missing.join(', ') }])
    return
  }
  const own = named.map(id => known.get(id)!.hash)
  watcher.checks([checkList(receipt.cards_hash, () => hashList(own, hashes.history, hashes.steps))])
}

function checkList(expected: string, compute: () => string): Check {
  try {
    return compare('list', expected, compute())
  } catch (error) {
    // One of the hashes is none.
    return { what: 'list', expected, computed: null, ok: false, detail: detailOf(error) }
  }
}

/** Checks everything. `sources` are the cards that the messages name, with their hashes. */
export async function verify(receipt: Receipt, sources: Sources, server: Server, watcher: Watcher) {
  const cards = checkCards(receipt, namedCards(receipt), sources, server, watcher)
  await Promise.all([checkRequest(receipt, server, watcher), cards])
}
