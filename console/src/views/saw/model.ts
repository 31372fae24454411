/** What a model call saw, in the forms that the view draws. Everything here is a recorded row; what is not recorded is `unknown`. */
import type { Schemas } from '../../api'
import type { CardFact } from '../../verify'

export type Seen = Schemas['Seen']
export type SeenMessage = Schemas['SeenMessage']
export type Handed = Schemas['Handed']
export type Reason = Schemas['Reason']
export type Receipt = Schemas['Receipt']
export type Facts = ReadonlyMap<string, CardFact>

const letters: Record<string, string> = {
  system_prompt: 'S',
  framework__context: 'F',
  experience__context: 'X',
  knowledge__context: 'K',
  todo__context: 'T',
  compression__context: 'C',
  checkpoint_messages: 'H',
  query: 'Q',
  steps: 'O',
  tools: '#',
}

/** Each layer has a letter beside its colour. */
export const letterOf = (layer: string) => letters[layer] ?? 'E'

export const colourOf = (layer: string) => `var(--layer-${layer in letters ? layer : 'other'})`

/** Why a message is in the context. */
export type From =
  | { kind: 'profile' }
  | { kind: 'framework'; version: string }
  | { kind: 'documents'; paths: string[] }
  | { kind: 'block'; everyStep: boolean }
  | { kind: 'handed'; handed: Handed }
  | { kind: 'own' }
  | { kind: 'recorded'; provider: string }
  | { kind: 'unknown' }

/** Returns the part of a handover that put a card at a place of the context box. */
export function handedAt(place: number, handovers: Handed[]): Handed | undefined {
  return handovers.find(({ from_place, n_cards }) => place >= from_place && place < from_place + n_cards)
}

export function fromOf(message: SeenMessage, receipt: Receipt, facts: Facts, handovers: Handed[]): From {
  const { layer, sources } = message
  // Nothing of it was put together by Waybill.
  if (receipt.recorded) return { kind: 'recorded', provider: receipt.recorded.provider }
  if (layer === 'system_prompt') return { kind: 'profile' }
  if (layer === 'framework__context') return { kind: 'framework', version: receipt.framework_version }
  const block = receipt.blocks.find(({ key }) => key === layer)
  if (block) {
    const pieces = block.sources ?? []
    if (pieces.length > 0) return { kind: 'documents', paths: pathsOf(pieces) }
    return { kind: 'block', everyStep: block.every_step }
  }
  if (layer === 'steps') return { kind: 'own' }
  for (const { card_id } of [...sources].reverse()) {
    const fact = facts.get(card_id)
    if (fact?.list !== 'history' || fact.place === null) continue
    const handed = handedAt(fact.place, handovers)
    if (handed) return { kind: 'handed', handed }
  }
  return { kind: 'unknown' }
}

/** `baking.md §3, §7` */
function pathsOf(pieces: Schemas['Provenance'][]): string[] {
  const paths = new Map<string, number[]>()
  for (const { path, seq } of pieces) paths.set(path, [...(paths.get(path) ?? []), seq])
  return [...paths].map(([path, seqs]) => `${path} ${seqs.map(seq => `§${seq}`).join(', ')}`)
}

/** A stretch of the context, to token scale. */
export interface Band {
  kind: 'tools' | 'message' | 'card' | 'omitted' | 'gone' | 'format'
  layer: string
  tokens: number
  /** Of messages: the numbers of the first and the last. */
  first: number
  last: number
  /** Of cards that were left out, or are gone. */
  cardIds: string[]
  reason?: Reason
}

/** Cards that were left out, one by one. */
export interface LeftOut {
  cardId: string
  reason: Reason
  fact: CardFact | undefined
}

export function leftOutOf(seen: Pick<Seen, 'omitted'>, facts: Facts): LeftOut[] {
  const cards = seen.omitted.flatMap(({ card_ids, reason }) =>
    card_ids.map(cardId => ({ cardId, reason, fact: facts.get(cardId) })),
  )
  const rank = ({ fact }: LeftOut) => (fact?.list === 'history' ? 0 : fact?.list === 'steps' ? 1 : 2)
  return cards.sort((a, b) => rank(a) - rank(b) || (a.fact?.place ?? 0) - (b.fact?.place ?? 0))
}

/** The layer in which a card of a list would have stood. */
const layerOfList = (list: CardFact['list']) => (list === 'steps' ? 'steps' : 'checkpoint_messages')

/**
 * Returns the bands in the order in which the model read them. What was left out stands where it would have stood: before the first message
 * of its layer that was made of a later card.
 */
export function bandsOf(seen: Seen, facts: Facts): Band[] {
  const bands: Band[] = []
  const plain = { first: 0, last: 0, cardIds: [] as string[] }
  if (seen.tools) bands.push({ ...plain, kind: 'tools', layer: 'tools', tokens: seen.tools.n_tokens })
  const waiting = leftOutOf(seen, facts).filter(({ fact }) => fact && fact.list !== 'named')
  let next = 0
  const leave = (upto: { layer: string; place: number } | { before: 'steps' | 'query' } | 'end') => {
    while (next < waiting.length) {
      const { cardId, reason, fact } = waiting[next]!
      const layer = layerOfList(fact!.list)
      const isDue =
        upto === 'end' ||
        ('before' in upto ? layer === 'checkpoint_messages' : layer === upto.layer && fact!.place! < upto.place)
      if (!isDue) return
      next += 1
      bands.push({ ...plain, kind: 'omitted', layer, tokens: fact!.nTokens ?? 0, cardIds: [cardId], reason })
    }
  }
  for (const message of seen.messages) {
    const { layer, n, n_tokens, sources } = message
    const places = sources.map(source => facts.get(source.card_id)?.place).filter(place => place != null)
    if (layer === 'query' || layer === 'steps') leave({ before: layer })
    if (places.length > 0) leave({ layer, place: Math.min(...places) })
    bands.push({ ...plain, kind: 'message', layer, tokens: n_tokens, first: n, last: n })
  }
  leave('end')
  const counted = seen.messages.reduce((sum, message) => sum + message.n_tokens, seen.tools?.n_tokens ?? 0)
  const rest = seen.receipt.n_tokens - counted
  if (rest > 0) bands.push({ ...plain, kind: 'format', layer: 'tools', tokens: rest })
  return bands
}

/** What is left to draw of a call that cannot be rendered: the cards that it read, with those that are gone. */
export function bandsOfCards(facts: Iterable<CardFact>, receipt: Receipt): Band[] {
  const named = new Map<string, string>()
  if (receipt.system_prompt_card_id) named.set(receipt.system_prompt_card_id, 'system_prompt')
  if (receipt.tools_card_id) named.set(receipt.tools_card_id, 'tools')
  if (receipt.session_summary_card_id) named.set(receipt.session_summary_card_id, 'compression__context')
  for (const { card_id, key } of receipt.blocks) named.set(card_id, key)
  for (const card_id of receipt.query_card_ids) named.set(card_id, 'query')
  return [...facts].map(({ cardId, list, nTokens, gone }) => ({
    kind: gone === null ? 'card' : 'gone',
    layer: named.get(cardId) ?? layerOfList(list),
    tokens: nTokens ?? 0,
    first: 0,
    last: 0,
    cardIds: [cardId],
  }))
}

/** Puts neighbours of one kind together while they are too small to be seen, so that a long context is a few hundred bands. */
export function mergeSmall(bands: Band[], most = 240): Band[] {
  if (bands.length <= most) return bands
  const total = bands.reduce((sum, band) => sum + band.tokens, 0)
  const small = total / most
  const merged: Band[] = []
  for (const band of bands) {
    const last = merged.at(-1)
    const fits =
      last !== undefined &&
      last.kind === band.kind &&
      last.layer === band.layer &&
      last.reason === band.reason &&
      last.tokens + band.tokens <= small
    if (fits) {
      last.tokens += band.tokens
      last.last = band.last
      last.cardIds.push(...band.cardIds)
    } else merged.push({ ...band, cardIds: [...band.cardIds] })
  }
  return merged
}

/** A stretch of the second row: whose memory it is. */
export interface Share {
  from: From | null
  tokens: number
  /** The first message of the stretch. Zero if it has none. */
  first: number
}

const same = (a: From | null, b: From | null) =>
  a?.kind === b?.kind && (a?.kind !== 'handed' || b?.kind !== 'handed' || a.handed.part === b.handed.part)

/** Splits the context by where it came from. */
export function sharesOf(bands: Band[], fromOfMessage: (n: number) => From | null): Share[] {
  const shares: Share[] = []
  for (const band of bands) {
    const from = band.kind === 'message' ? fromOfMessage(band.first) : null
    const last = shares.at(-1)
    if (last && same(last.from, from)) last.tokens += band.tokens
    else shares.push({ from, tokens: band.tokens, first: band.kind === 'message' ? band.first : 0 })
  }
  return shares
}

/** Adds up what was left out, by reason. */
export function reasonsOf(leftOut: LeftOut[]): { reason: Reason; n: number; tokens: number }[] {
  const sums = new Map<Reason, { reason: Reason; n: number; tokens: number }>()
  for (const { reason, fact } of leftOut) {
    const sum = sums.get(reason) ?? { reason, n: 0, tokens: 0 }
    sums.set(reason, { reason, n: sum.n + 1, tokens: sum.tokens + (fact?.nTokens ?? 0) })
  }
  return [...sums.values()].sort((a, b) => b.n - a.n)
}

/** Returns the first message of the next layer, or of the one before. */
export function stepLayer(messages: SeenMessage[], n: number, by: 1 | -1): number {
  const layer = messages[n - 1]?.layer
  let at = n - 1 + by
  while (messages[at] && messages[at]!.layer === layer) at += by
  const found = messages[at]
  if (!found) return n || 1
  if (by === 1) return found.n
  while (messages[at - 1]?.layer === found.layer) at -= 1
  return messages[at]!.n
}
