import { expect, it } from 'vitest'
import {
  type Card,
  fieldsOf,
  type Recorded,
  type Segment,
  type Step,
  type Summary,
  transcript,
  withWriting,
  write,
} from './transcript'

const card = (id: string, type: string, step: string | null, more: Partial<Card> = {}): Card => ({
  state: 'live',
  card_id: id,
  hash: '',
  content: id,
  metadata: { type, role: 'assistant', step_id: step },
  ...more,
})
const step = (id: string, at: number) => ({ step_id: id, created_at: new Date(at).toISOString() }) as Step
const segment = (kind: Segment['kind'], from: number, more: Partial<Segment> = {}): Segment => ({
  agent_turn_id: 't',
  kind,
  from_ms: from,
  to_ms: null,
  ref: null,
  ...more,
})
const recorded = (more: Partial<Recorded>): Recorded => ({
  turn: { status: 'open' } as Summary,
  steps: [],
  question: [],
  cards: [],
  children: new Map(),
  segments: [],
  ...more,
})
const keys = (more: Partial<Recorded>) => transcript(recorded(more)).map(row => row.key)

it('puts cards below their steps, and results to their calls', () => {
  const rows = transcript(
    recorded({
      steps: [step('1', 10), step('2', 20)],
      question: [card('q', 'task.instruction', null)],
      cards: [
        card('thinks', 'agent.reasoning', '1'),
        card('says', 'agent.thought', '1'),
        card('calls', 'tool.call', '1', { tool_call_id: 'c' }),
        card('answers', 'tool.result', null, { tool_call_id: 'c' }),
        card('delivers', 'task.deliverable', '2'),
      ],
      children: new Map([['c', [{ turn: 'child', profile: 'editor', status: 'open' }]]]),
      segments: [segment('child', 1, { ref: 'c', to_ms: 8 }), segment('person', 2, { ref: 'c' })],
    }),
  )
  expect(rows.map(row => row.kind)).toEqual(['question', 'step', 'reasoning', 'said', 'call', 'step', 'deliverable'])
  expect(rows[4]).toMatchObject({
    result: { card_id: 'answers' },
    children: [{ turn: 'child' }],
    asks: true,
    tookMs: 7,
  })
})

it('says that a worker was lost before the step that another one made', () => {
  expect(keys({ steps: [step('1', 10), step('2', 20)], segments: [segment('lost', 15)] })).toEqual(['s1', 'l15', 's2'])
  expect(keys({ steps: [step('1', 10)], segments: [segment('lost', 15)] })).toEqual(['s1', 'l15'])
})

it('shows a step that the list of steps does not have yet, and a result without its call', () => {
  expect(keys({ cards: [card('x', 'agent.thought', '9')] })).toEqual(['s9', 'x'])
  expect(transcript(recorded({ cards: [card('r', 'tool.result', null, { tool_call_id: 'c' })] }))[0]).toMatchObject({
    kind: 'other',
  })
})

it('shows that a card is gone', () => {
  const gone = { state: 'gone', card_id: 'g', hash: 'h', why: 'erased' } as Card
  expect(transcript(recorded({ cards: [gone] }))[0]).toMatchObject({ kind: 'gone' })
})

it('shows what is being written until the step lands', () => {
  const writing = [{ step: '1', attempt: 0, text: 'Br' }]
  const shown = (more: Partial<Recorded>) => withWriting(transcript(recorded(more)), writing).map(row => row.key)
  expect(shown({})).toEqual(['writing'])
  expect(shown({ steps: [step('1', 1)] })).toEqual(['s1'])
  expect(shown({ turn: { status: 'failed' } as Summary })).toEqual(['end'])
})

it('begins anew with a new attempt', () => {
  const piece = (attempt: number, text: string) => ({ agent_turn_id: 't', step_id: '1', attempt, text })
  const written = write(write([], [piece(0, 'Bre'), piece(0, 'ad')]), [
    piece(1, 'Be'),
    piece(0, 'late'),
    piece(1, 'er'),
  ])
  expect(written).toEqual([
    { step: '1', attempt: 0, text: 'Bread' },
    { step: '1', attempt: 1, text: 'Beer' },
  ])
})

it('reads fields only from objects', () => {
  expect(fieldsOf('{"b":1,"a":2}')).toEqual([
    ['b', 1],
    ['a', 2],
  ])
  expect(fieldsOf('{"b":')).toBeNull()
  expect(fieldsOf('[1]')).toBeNull()
  expect(fieldsOf(null)).toBeNull()
})
