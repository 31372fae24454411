import { describe, expect, it } from 'vitest'
import type { Schemas } from '../../api'
import {
  boxOf,
  hit,
  type Layout,
  layout,
  MOST_SIBLINGS,
  NODE_H,
  noFolds,
  pieces,
  reveal,
  type Tree,
  toggle,
  UNFOLD,
} from './layout'
import {
  type Graph,
  groupOf,
  nextExpensive,
  nextFailure,
  numberOf,
  patchedRun,
  type Run,
  runOf,
  totals,
  walk,
} from './model'
import { patch, wholeIn } from './patch'
import { looks, looksAt, stepsAt, timesOf } from './playhead'
import { niceStep, scaleOf, toShare, toTime } from './scale'

const id = (n: number) => `01a1eedf-${n.toString(16).padStart(4, '0')}-7000-8000-000000000000`

/** A page of a graph: `parents[i]` is the place of the parent, `edges[i]` the call. */
function page(parents: number[], edges: number[] = parents.map(() => -1), more: Partial<Graph> = {}): Graph {
  const n = parents.length
  const fill = <T>(value: T): T[] => new Array(n).fill(value)
  const count = Math.max(-1, ...edges) + 1
  return {
    n,
    ids: parents.map((_, i) => id(i)),
    above: [],
    parent: parents,
    status: fill('success'),
    profile: fill(0),
    batch: fill(-1),
    task_index: parents.map((_, i) => i),
    edge: edges,
    created_ms: parents.map((_, i) => 1_000 + i * 100),
    finished_ms: fill(10_000),
    steps: fill(2),
    input: fill(100),
    cached: fill(50),
    output: fill(10),
    microdollars: fill(0),
    external: fill(false),
    forked: fill(false),
    profiles: ['worker'],
    batches: [],
    edges: Array.from({ length: count }, (_, e) => ({
      tool_call_id: id(9_000 + e),
      agent_turn_id: id(0),
      tool: `tool${e}`,
      asked_at: '2026-11-18T00:00:00Z',
      answered_at: null,
      status: null,
    })),
    truncated: false,
    next: null,
    ...more,
  }
}

function treeOf(run: Run): Tree {
  const group = new Int32Array(run.n)
  for (let i = 0; i < run.n; i++) group[i] = groupOf(run, i)
  return { n: run.n, parent: run.parent, childStart: run.childStart, children: run.children, group }
}

/** No two items of a column cover each other. */
function expectApart(plan: Layout) {
  for (let d = 0; d + 1 < plan.columnStart.length; d++) {
    for (let at = plan.columnStart[d]! + 1; at < plan.columnStart[d + 1]!; at++) {
      const [a, b] = [plan.column[at - 1]!, plan.column[at]!]
      expect(plan.y[a]! + plan.h[a]!).toBeLessThanOrEqual(plan.y[b]!)
    }
  }
}

it('loads a large graph whole, but not more often than every ten seconds', () => {
  expect([1_000, 5_000, 11_000, 99_000].map(now => wholeIn(1_000, now))).toEqual([10_000, 6_000, 0, 0])
})

it('shows names as they are, without what is hidden in them', () => {
  const hidden = page([-1, 0], [-1, 0], { profiles: ['a\u202eb'] })
  hidden.edges[0]!.tool = 'call\u200b'
  const run = runOf([hidden])
  expect([run.profiles[0], run.edges[0]!.tool]).toEqual(['a[U+202E]b', 'call[U+200B]'])
})

describe('columns', () => {
  it('joins pages whose parents are on an earlier one', () => {
    const first = page([-1, 0, 0])
    const second = page([2, 0, 2], [0, 0, 1], {
      ids: [id(10), id(11), id(12)],
      above: [id(1)],
      parent: [3, 0, 3],
      profiles: ['other'],
    })
    const run = runOf([first, second])
    expect(run.n).toBe(6)
    expect([...run.parent]).toEqual([-1, 0, 0, 1, 3, 1])
    expect([...run.depth]).toEqual([0, 1, 1, 2, 3, 2])
    expect(run.profiles).toEqual(['worker', 'other'])
    expect([...run.order]).toEqual([0, 1, 3, 4, 5, 2])
    expect(run.below[1]).toBe(3)
    expect(totals(run)).toMatchObject({ turns: 6, steps: 12, input: 600, cached: 300 })
  })
  it('keeps the turns of a call together, in the order of their tasks', () => {
    const run = runOf([page([-1, 0, 0, 0, 0], [-1, 0, 1, 0, 1], { task_index: [-1, 1, 0, 0, 1] })])
    expect([...run.children].slice(0, 4)).toEqual([3, 1, 2, 4])
    expect(numberOf(run, 1)).toBe(2)
  })
  it('walks to parents, children, siblings and cousins', () => {
    const run = runOf([page([-1, 0, 0, 1, 2])])
    expect(walk(run, 3, 'parent')).toBe(1)
    expect(walk(run, 0, 'child')).toBe(1)
    expect(walk(run, 1, 'next')).toBe(2)
    expect(walk(run, 3, 'next')).toBe(4)
    expect(walk(run, 0, 'parent')).toBe(0)
  })
  it('finds failures and the most expensive turn', () => {
    const run = runOf([
      page([-1, 0, 0, 0], undefined, {
        status: ['success', 'failed', 'success', 'timeout'],
        microdollars: [1, 5, 9, 0],
      }),
    ])
    expect(nextFailure(run, -1)).toBe(1)
    expect(nextFailure(run, 1)).toBe(3)
    expect(nextFailure(run, 3)).toBe(1)
    expect(nextExpensive(run, -1)).toBe(2)
    expect(nextExpensive(run, 2)).toBe(1)
  })
})

describe('layout', () => {
  it('puts a parent beside the middle of its children', () => {
    const run = runOf([page([-1, 0, 0, 0, 1, 2, 3])])
    const plan = layout(treeOf(run), noFolds)
    const y = (i: number) => plan.y[plan.item[i]!]!
    expect(y(0)).toBeCloseTo((y(1) + y(3)) / 2)
    expect(y(4)).toBe(y(1))
    expect(plan.x[plan.item[4]!]!).toBeGreaterThan(plan.x[plan.item[1]!]!)
    expectApart(plan)
  })
  it('finds the turn at a point', () => {
    const run = runOf([page([-1, 0, 0, 0, 1, 2, 3])])
    const tree = treeOf(run)
    const plan = layout(tree, noFolds)
    for (let i = 0; i < run.n; i++) {
      const box = boxOf(plan, tree, i)!
      expect(hit(plan, tree, box.x + box.w / 2, box.y + box.h / 2)).toBe(i)
    }
    expect(hit(plan, tree, -5, -5)).toBe(-1)
  })
  it('folds many siblings into a strip, and unfolds a range of it', () => {
    const n = 10_000
    const run = runOf([page([-1, ...new Array(n).fill(0)], [-1, ...new Array(n).fill(0)])])
    const tree = treeOf(run)
    const plan = layout(tree, noFolds)
    expect(plan.n).toBe(2)
    const cell = boxOf(plan, tree, 5_000)!
    expect(hit(plan, tree, cell.x + 4, cell.y + 4)).toBe(5_000)
    const folds = toggle(tree, noFolds, 5_000)
    const open = layout(tree, folds)
    expect(open.n).toBe(1 + 2 + UNFOLD)
    expect(boxOf(open, tree, 5_000)!.h).toBe(NODE_H)
    expectApart(open)
    expect(toggle(tree, folds, 5_000).unfolded).toEqual([])
  })
  it('cuts a group at what is unfolded', () => {
    expect(pieces(MOST_SIBLINGS)).toEqual([[0, MOST_SIBLINGS, false]])
    expect(pieces(100, [{ first: 0, from: 32, to: 64 }])).toEqual([
      [0, 32, true],
      [32, 64, false],
      [64, 100, true],
    ])
  })
  it('shows a turn that is hidden below a strip or a closed turn', () => {
    const run = runOf([page([-1, ...new Array(100).fill(0), 50], [-1, ...new Array(100).fill(0), 1])])
    const tree = treeOf(run)
    expect(layout(tree, noFolds).item[101]).toBe(-1)
    const folds = reveal(tree, { closed: [0], unfolded: [] }, 101)
    expect(folds.closed).toEqual([])
    expect(layout(tree, folds).item[101]).toBeGreaterThan(0)
    expect(reveal(tree, folds, 101)).toBe(folds)
  })
  it('places 10,000 turns in time that is linear, whatever their shape', () => {
    const wide = Array.from({ length: 10_000 }, (_, i) => (i === 0 ? -1 : Math.floor((i - 1) / 20)))
    const deep = Array.from({ length: 10_000 }, (_, i) => i - 1)
    for (const parents of [wide, deep]) {
      const run = runOf([page(parents)])
      const start = performance.now()
      const plan = layout(treeOf(run), noFolds)
      const took = performance.now() - start
      expect(plan.n).toBe(10_000)
      expect(took, `${took} ms for 10,000 turns`).toBeLessThan(1_000)
      expectApart(plan)
    }
  })
})

describe('playhead', () => {
  const run = runOf([
    page([-1, 0], undefined, { created_ms: [0, 100], finished_ms: [1_000, -1], status: ['failed', 'open'] }),
  ])
  const segment = (
    turn: number,
    kind: 'queued' | 'model' | 'child' | 'person' | 'tool',
    from_ms: number,
    to_ms: number | null,
  ) => ({
    agent_turn_id: id(turn),
    kind,
    from_ms,
    to_ms,
    ref: null,
    status: null,
  })
  const times = timesOf(
    run,
    [
      segment(0, 'queued', 0, 50),
      segment(0, 'model', 50, 90),
      segment(0, 'child', 90, 900),
      segment(1, 'queued', 100, 200),
      segment(1, 'tool', 300, null),
      segment(1, 'person', 320, null),
    ],
    false,
  )
  const at = (t: number) => [...looksAt(run, times, t)].map(look => looks[look])
  it('tells how every turn was', () => {
    expect(at(-1)).toEqual(['absent', 'absent'])
    expect(at(20)).toEqual(['queued', 'absent'])
    expect(at(60)).toEqual(['running', 'absent'])
    expect(at(150)).toEqual(['waiting', 'queued'])
    expect(at(250)).toEqual(['waiting', 'running'])
    expect(at(310)).toEqual(['waiting', 'waiting'])
    expect(at(Number.POSITIVE_INFINITY)).toEqual(['failed', 'asks'])
    expect(stepsAt(run, times, 0, 60)).toBe(0)
    expect(stepsAt(run, times, 0, 95)).toBe(1)
  })
  it('does not say that a turn runs when the record does not tell', () => {
    const look = (times: Parameters<typeof looksAt>[1]) => looks[looksAt(run, times, 250)[1]!]
    expect(look(times)).toBe('running')
    expect(look({ ...times, truncated: true })).toBe('open')
    expect(look(timesOf(run, [segment(0, 'model', 50, 90)], false))).toBe('open')
  })
})

describe('time axis', () => {
  it('draws long idle times short, and finds times again', () => {
    const run = runOf([page([-1], undefined, { created_ms: [0], finished_ms: [3_600_000] })])
    const one = (kind: 'model' | 'person', from_ms: number, to_ms: number) => ({
      agent_turn_id: id(0),
      kind,
      from_ms,
      to_ms,
      ref: null,
      status: null,
    })
    const times = timesOf(
      run,
      [one('model', 0, 1_000), one('person', 1_000, 3_599_000), one('model', 3_599_000, 3_600_000)],
      false,
    )
    const scale = scaleOf(run, times, 0)
    expect(scale.pieces.map(piece => piece.isIdle)).toEqual([false, true, false])
    expect(toShare(scale, 1_000)).toBeCloseTo(0.48)
    expect(toShare(scale, 3_599_000)).toBeCloseTo(0.52)
    for (const t of [0, 500, 1_000, 2_000_000, 3_599_500, 3_600_000])
      expect(toTime(scale, toShare(scale, t))).toBeCloseTo(t, 0)
  })
  it('chooses round steps', () => {
    expect(niceStep(7_500, 8)).toBe(1_000)
    expect(niceStep(120_000, 6)).toBe(30_000)
  })
})

describe('events', () => {
  it('change a loaded graph without loading it again', () => {
    const held = {
      pages: [page([-1, 0], undefined, { status: ['open', 'open'], finished_ms: [-1, -1] })],
      isCut: false,
    }
    const event = (kind: 'task' | 'step' | 'state', status: string) =>
      ({ event: kind, agent_turn_id: id(1), status, created_at: '1970-01-01T00:00:05Z' }) as Schemas['TurnEvent']
    const { pages } = patch(held, [event('step', 'running'), event('task', 'failed')])
    const run = runOf(pages)
    // Read from the run before, it is the same; and events that change nothing leave all as it is.
    expect(patchedRun(runOf(held.pages), pages)).toEqual(run)
    expect(patch(held, [event('state', 'running')])).toBe(held)
    expect([run.status[1], run.finished[1], run.steps[1]]).toEqual([2, 5_000, 2])
    expect(held.pages[0]!.status[1]).toBe('open')
  })
})
