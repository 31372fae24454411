/** What a turn did, as rows in reading order. Nothing is guessed: each row is a card, a step, or a segment of the record. */
import type { Schemas } from '../../api'

export type Card = Schemas['Reading']
export type Step = Schemas['Taken']
export type Segment = Schemas['Segment']
export type Summary = Schemas['Summary']

export interface Child {
  turn: string
  profile: string
  status: string
}

/** A piece of what a model writes now. A new attempt, or a new step, starts from the beginning: the text before it counts no more. */
export interface Writing {
  step: string
  attempt: number
  text: string
}

export type Row = { key: string; step: string | null } & (
  | { kind: 'question'; card: Card }
  | { kind: 'step'; n: number; taken: Step | null }
  | { kind: 'said' | 'reasoning' | 'reminder' | 'deliverable' | 'other' | 'gone'; card: Card }
  | { kind: 'call'; card: Card; result: Card | null; children: Child[]; asks: boolean; tookMs: number | null }
  | { kind: 'lost'; fromMs: number; toMs: number | null; wentOn: boolean }
  | { kind: 'writing'; pieces: Writing[] }
  | { kind: 'end'; turn: Summary }
)

export interface Recorded {
  turn: Summary
  steps: Step[]
  /** The cards of the question, then those of the output box, each in order. */
  question: Card[]
  cards: Card[]
  children: Map<string, Child[]>
  segments: Segment[]
}

const kinds: Record<string, 'said' | 'reasoning' | 'reminder' | 'deliverable'> = {
  'agent.thought': 'said',
  'agent.reasoning': 'reasoning',
  'agent.reminder': 'reminder',
  'task.deliverable': 'deliverable',
}

export function transcript({ turn, steps, question, cards, children, segments }: Recorded): Row[] {
  const rows: Row[] = question.map(card => ({ kind: 'question', key: `q${card.card_id}`, step: null, card }))
  const results = new Map<string, Card>()
  const calls = new Set<string>()
  for (const card of cards) {
    if (!card.tool_call_id) continue
    if (card.metadata?.type === 'tool.result') results.set(card.tool_call_id, card)
    if (card.metadata?.type === 'tool.call') calls.add(card.tool_call_id)
  }
  const asked = new Set<string>()
  const took = new Map<string, number>()
  for (const { kind, ref, from_ms, to_ms } of segments) {
    if (!ref) continue
    if (kind === 'person') asked.add(ref)
    if ((kind === 'tool' || kind === 'child') && typeof to_ms === 'number') took.set(ref, to_ms - from_ms)
  }

  // A card without a step of its own stands where it was written: after the step before it.
  const byStep = new Map<string, Card[]>(steps.map(step => [step.step_id, []]))
  const before: Card[] = []
  let current = before
  for (const card of cards) {
    if (card.tool_call_id && card.metadata?.type === 'tool.result' && calls.has(card.tool_call_id)) continue
    const step = card.metadata?.step_id
    if (step) {
      current = byStep.get(step) ?? []
      byStep.set(step, current)
    }
    current.push(card)
  }

  const put = (card: Card, step: string | null) => {
    const key = card.card_id
    const type = card.metadata?.type ?? ''
    if (card.state === 'gone') rows.push({ kind: 'gone', key, step, card })
    else if (type === 'tool.call') {
      const call = card.tool_call_id ?? ''
      rows.push({
        kind: 'call',
        key,
        step,
        card,
        result: results.get(call) ?? null,
        children: children.get(call) ?? [],
        asks: asked.has(call),
        tookMs: took.get(call) ?? null,
      })
    } else rows.push({ kind: kinds[type] ?? 'other', key, step, card })
  }

  const lost = segments.filter(one => one.kind === 'lost')
  const putLost = (upto: number, wentOn: boolean) => {
    while (lost[0] && lost[0].from_ms <= upto) {
      const { from_ms, to_ms } = lost.shift()!
      rows.push({ kind: 'lost', key: `l${from_ms}`, step: null, fromMs: from_ms, toMs: to_ms ?? null, wentOn })
    }
  }

  for (const card of before) put(card, null)
  const taken = new Map(steps.map(step => [step.step_id, step]))
  let n = 0
  for (const [id, ofStep] of byStep) {
    const step = taken.get(id) ?? null
    if (step) putLost(Date.parse(step.created_at), true)
    n += 1
    rows.push({ kind: 'step', key: `s${id}`, step: id, n, taken: step })
    for (const card of ofStep) put(card, id)
  }
  putLost(Number.POSITIVE_INFINITY, false)
  if (turn.status !== 'open') rows.push({ kind: 'end', key: 'end', step: null, turn })
  return rows
}

/** Adds what is being written, until its step has landed. The other rows stay the same objects. */
export function withWriting(rows: Row[], writing: Writing[]): Row[] {
  if (writing.length === 0 || rows.at(-1)?.kind === 'end') return rows
  const landed = new Set(rows.map(row => row.step))
  const pieces = writing.filter(piece => !landed.has(piece.step))
  return pieces.length === 0 ? rows : [...rows, { kind: 'writing', key: 'writing', step: null, pieces }]
}

/** Adds pieces to what is being written. */
export function write(old: Writing[], pieces: Schemas['TokenEvent'][]): Writing[] {
  const all = old.map(one => ({ ...one }))
  for (const { step_id, attempt, text } of pieces) {
    const last = all.at(-1)
    if (last && last.step === step_id && last.attempt === attempt) last.text += text
    // A piece of an attempt that was given up comes late: it counts no more.
    else if (last && last.step === step_id && last.attempt > attempt) continue
    else all.push({ step: step_id, attempt, text })
  }
  return all
}

/** What was called, with the arguments as the model wrote them. */
export function callOf(card: Card): { name: string; arguments: string } {
  const content = card.content as { tool_name?: unknown; arguments?: unknown } | string | null | undefined
  if (content === null || typeof content !== 'object') return { name: '', arguments: String(content ?? '') }
  return { name: String(content.tool_name ?? ''), arguments: String(content.arguments ?? '') }
}

/** What came back. */
export function resultOf(card: Card): { status: string; result: unknown } {
  const content = card.content as { status?: unknown; result?: unknown } | string | null | undefined
  if (content === null || typeof content !== 'object') return { status: '', result: content }
  return { status: String(content.status ?? ''), result: content.result }
}

/** The fields of JSON text that is an object, in its order; otherwise null. */
export function fieldsOf(value: unknown): [string, unknown][] | null {
  let read = value
  if (typeof value === 'string') {
    if (!value.trimStart().startsWith('{')) return null
    try {
      read = JSON.parse(value)
    } catch {
      return null
    }
  }
  if (read === null || typeof read !== 'object' || Array.isArray(read)) return null
  return Object.entries(read)
}

export function textOf(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value, null, 2) ?? '')
}
