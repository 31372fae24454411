/** What was verified. It has no hash functions in it: those are in the worker. */
import type { Reading } from './hash'

/** Why a value could not be computed. */
export type Why =
  /** The content of the card may no longer be shown. Its hash is kept, so the list can still be checked. */
  | 'gone'
  /** The server has no such card. */
  | 'missing'
  /** A message names the card, but the receipt does not cover it. */
  | 'not_listed'
  /** The server gave cards from other places than those of the receipt. */
  | 'out_of_place'
  /** Credentials in it were never stored, so the whole cannot be compared; the detail has their paths. */
  | 'withheld'
  /** The same bytes cannot be rendered again; the detail has the reason. */
  | 'not_renderable'
  /** The server did not give what is needed. */
  | 'failed'
  /** The server has no such checks: it was replaced by a newer version. */
  | 'upgraded'

export type State = 'checking' | 'verified' | 'mismatch' | 'unchecked'

export interface Check {
  what: 'request' | 'card' | 'list'
  /** Of a card: its id. */
  cardId?: string
  /** What the record says. Null if it says nothing. */
  expected: string | null
  /** What was computed here. Null if it could not be. */
  computed: string | null
  /** Null: cannot be checked, see `why`. */
  ok: boolean | null
  why?: Why
  detail?: string
}

export function stateOf(check: Check | undefined): State {
  if (!check) return 'checking'
  return check.ok === null ? 'unchecked' : check.ok ? 'verified' : 'mismatch'
}

/** Where a card stood that the call read. */
export interface CardFact {
  cardId: string
  list: 'named' | 'history' | 'steps'
  /** The box that was read, and the place in it. Null for a card that the receipt names. */
  boxId: string | null
  place: number | null
  /** The box in which it was written. */
  writtenIn: string | null
  nTokens: number | null
  type: string | null
  author: string | null
  role: string | null
  origin: Reading['origin'] | null
  createdAt: string | null
  /** Why its content is gone. */
  gone: string | null
}

/** What is known so far. */
export interface Verification {
  request: Check | undefined
  list: Check | undefined
  cards: Map<string, Check>
  done: boolean
}

export const nothingYet: Verification = { request: undefined, list: undefined, cards: new Map(), done: false }

/** Adds checks. What was checked twice keeps the worse result. */
export function add(before: Verification, checks: Check[]): Verification {
  const cards = new Map(before.cards)
  const now: Verification = { ...before, cards }
  for (const check of checks) {
    const known = check.what === 'card' ? cards.get(check.cardId!) : now[check.what]
    if (known && badness(check) <= badness(known)) continue
    if (check.what === 'card') cards.set(check.cardId!, check)
    else now[check.what] = check
  }
  return now
}

const badness = (check: Check) => (check.ok === false ? 2 : check.ok === null ? 1 : 0)

export interface Count {
  verified: number
  mismatch: number
  unchecked: number
}

export function countCards({ cards }: Verification): Count {
  const count = { verified: 0, mismatch: 0, unchecked: 0 }
  for (const check of cards.values()) count[stateOf(check) as keyof Count] += 1
  return count
}

/** The state of all cards together. */
export function cardsState(verification: Verification): State {
  const count = countCards(verification)
  if (count.mismatch > 0) return 'mismatch'
  if (!verification.done && !verification.list) return 'checking'
  // The list failed before all cards were there: those that were checked say nothing about the others.
  return count.unchecked > 0 || verification.list?.why === 'failed' ? 'unchecked' : 'verified'
}

/** Everything that does not match. */
export function mismatches({ request, list, cards }: Verification): Check[] {
  return [request, list, ...cards.values()].filter(check => check?.ok === false) as Check[]
}
