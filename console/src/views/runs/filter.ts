/** The filter of Runs: one line of tokens, `name:value`. It becomes parameters of the list and, for what the list cannot filter, tests of a row. */
import type { Schemas } from '../../api'
import { stateOf } from '../../parts/look'

export type Summary = Schemas['Summary']

export const statuses = ['open', 'running', 'waiting', 'success', 'failed', 'canceled', 'timeout', 'recorded'] as const
export const waits = ['person', 'child', 'tool', 'retry', 'worker', 'queue'] as const
export const names = [
  'status',
  'profile',
  'cost',
  'since',
  'until',
  'label',
  'has',
  'no',
  'waits',
  'turns',
  'agent',
  'session',
  'channel',
  'forks',
] as const
export type Name = (typeof names)[number]

/** What is wrong with a token. The view has the words. */
export type Wrong =
  | 'no_name'
  | 'unknown_name'
  | 'no_value'
  | 'twice'
  | 'status'
  | 'cost'
  | 'time'
  | 'label'
  | 'flag'
  | 'waits'
  | 'turns'
  | 'id'

export interface Token {
  /** Where it stands in the text. */
  from: number
  to: number
  name: string
  value: string
  wrong: Wrong | null
}

export interface Query {
  status?: Schemas['TurnStatus']
  profile?: string
  agent?: string
  session?: string
  label?: string
  channel?: string
  since?: string
  until?: string
  forked_from?: string
  external?: boolean
  min_microdollars?: number
  roots?: boolean
  open?: boolean
}

export interface Filter {
  tokens: Token[]
  /** Parameters of the list, for a given time: `since:2h` moves with it. */
  query(now: number): Query
  /** What only the row can tell. */
  passes(turn: Summary): boolean
  isWrong: boolean
  isEmpty: boolean
}

const units: Record<string, number> = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000 }
const id = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i
const label = /^[a-z0-9_.-]{1,64}=[^\p{Cc}]{1,200}$/u

/** Cuts the text at spaces that are not in quotes. */
export function cut(text: string): Token[] {
  const tokens: Token[] = []
  for (const match of text.matchAll(/(?:"[^"]*"?|[^\s"])+/g)) {
    const said = match[0]
    const colon = said.indexOf(':')
    tokens.push({
      from: match.index,
      to: match.index + said.length,
      name: colon < 0 ? '' : said.slice(0, colon).toLowerCase(),
      value: said.slice(colon + 1).replaceAll('"', ''),
      wrong: null,
    })
  }
  return tokens
}

/** Reads `2h` as so long before `now`, and anything else as a date. */
export function time(value: string, now: number): number | null {
  const span = /^(\d{1,6})([smhdw])$/.exec(value)
  if (span) return now - Number(span[1]) * units[span[2]!]!
  if (!/^\d{4}-\d{2}-\d{2}/.test(value)) return null
  const at = Date.parse(value)
  return Number.isNaN(at) ? null : at
}

/** Reads `>0.5` as dollars. The list knows only "at least". */
export function cost(value: string): number | null {
  const dollars = /^>?=?\$?(\d+(?:\.\d*)?|\.\d+)$/.exec(value)
  return dollars ? Math.round(Number(dollars[1]) * 1_000_000) : null
}

function wrongOf(token: Token, seen: Set<string>): Wrong | null {
  const { name, value } = token
  if (name === '') return 'no_name'
  if (!(names as readonly string[]).includes(name)) return 'unknown_name'
  if (value === '') return 'no_value'
  // Both say whether there is content from outside.
  const key = name === 'no' ? 'has' : name
  if (seen.has(key)) return 'twice'
  seen.add(key)
  switch (name as Name) {
    case 'status':
      return (statuses as readonly string[]).includes(value) ? null : 'status'
    case 'waits':
      return (waits as readonly string[]).includes(value) ? null : 'waits'
    case 'cost':
      return cost(value) === null ? 'cost' : null
    case 'since':
    case 'until':
      return time(value, 0) === null ? 'time' : null
    case 'label':
      return label.test(value) ? null : 'label'
    case 'has':
    case 'no':
      return value === 'external' ? null : 'flag'
    case 'turns':
      return value === 'all' || value === 'roots' ? null : 'turns'
    case 'agent':
    case 'session':
    case 'forks':
      return id.test(value) ? null : 'id'
    default:
      return null
  }
}

export function parse(text: string): Filter {
  const seen = new Set<string>()
  const tokens = cut(text).map(token => ({ ...token, wrong: wrongOf(token, seen) }))
  const right = new Map<string, string>()
  for (const token of tokens) if (token.wrong === null) right.set(token.name, token.value)
  const status = right.get('status')
  const waitsFor = right.get('waits')
  return {
    tokens,
    isWrong: tokens.some(token => token.wrong !== null),
    isEmpty: tokens.length === 0,
    query(now) {
      const query: Query = {}
      // A turn that waits, or a fork, may be any turn of a tree.
      const isAll = right.get('turns') === 'all' || (waitsFor !== undefined && !right.has('turns'))
      if (!isAll) query.roots = true
      if (status === 'running' || status === 'waiting' || waitsFor !== undefined) query.open = true
      if (status !== undefined && status !== 'running' && status !== 'waiting')
        query.status = status as Schemas['TurnStatus']
      for (const name of ['profile', 'agent', 'session', 'label', 'channel'] as const) {
        const value = right.get(name)
        if (value !== undefined) query[name] = value
      }
      for (const name of ['since', 'until'] as const) {
        const value = right.get(name)
        if (value !== undefined) query[name] = new Date(time(value, now)!).toISOString()
      }
      const forks = right.get('forks')
      if (forks !== undefined) query.forked_from = forks
      if (right.has('has')) query.external = true
      if (right.has('no')) query.external = false
      const least = right.get('cost')
      if (least !== undefined) query.min_microdollars = cost(least)!
      return query
    },
    passes(turn) {
      if (status === 'running' && stateOf(turn) !== 'running') return false
      if (status === 'waiting' && !turn.waiting_for) return false
      return waitsFor === undefined || turn.waiting_for?.kind === waitsFor
    },
  }
}

export interface Suggestion {
  /** What stands in the list. */
  text: string
  /** The part of the filter that it replaces. */
  from: number
  to: number
}

/** What the token at the caret could become. */
export function suggest(text: string, caret: number, profiles: string[]): Suggestion[] {
  const at = cut(text).find(token => token.from <= caret && caret <= token.to)
  const [from, to] = at ? [at.from, at.to] : [caret, caret]
  const typed = text.slice(from, caret).toLowerCase()
  const colon = typed.indexOf(':')
  const offer = (all: string[]) =>
    all
      .filter(one => one.startsWith(typed) && one !== typed)
      .slice(0, 12)
      .map(one => ({ text: one, from, to }))
  if (colon < 0) return offer(names.map(name => `${name}:`))
  const name = typed.slice(0, colon)
  const values: Record<string, readonly string[]> = {
    status: statuses,
    profile: profiles,
    waits,
    has: ['external'],
    no: ['external'],
    turns: ['all', 'roots'],
    since: ['15m', '1h', '2h', '1d', '1w'],
    until: ['1h', '1d', '1w'],
    cost: ['>0.01', '>0.1', '>1'],
  }
  return offer((values[name] ?? []).map(value => `${name}:${value}`))
}

/** Puts a suggestion into the text, and says where the caret goes. */
export function accept(text: string, suggestion: Suggestion): { text: string; caret: number } {
  const isWhole = !suggestion.text.endsWith(':')
  const after = text.slice(suggestion.to)
  const put = suggestion.text + (isWhole && !after.startsWith(' ') ? ' ' : '')
  const caret = suggestion.from + put.length
  return { text: text.slice(0, suggestion.from) + put + after, caret }
}
