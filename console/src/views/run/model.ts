/** A run: a root turn and all turns below it, in columns. */
import type { Schemas } from '../../api'
import { plain } from '../../parts/visible'

export type Graph = Schemas['Graph']
export type Segment = Schemas['Segment']

export const statuses = ['open', 'success', 'failed', 'canceled', 'timeout'] as const

/** A recorded turn is drawn as one that is done: Waybill does not run it. */
const statusOf = (status: Schemas['TurnStatus']): number =>
  Math.max(0, statuses.indexOf(status === 'recorded' ? 'success' : status))
export const OPEN = 0

export interface Run {
  n: number
  ids: string[]
  /** Place of each turn, by its id. */
  place: Map<string, number>
  /** Place of the turn that started it. -1 for the first one. */
  parent: Int32Array
  status: Uint8Array
  profile: Int32Array
  batch: Int32Array
  task: Int32Array
  edge: Int32Array
  created: Float64Array
  /** -1 while it is open. */
  finished: Float64Array
  steps: Float64Array
  input: Float64Array
  cached: Float64Array
  output: Float64Array
  cost: Float64Array
  external: Uint8Array
  forked: Uint8Array
  depth: Int32Array
  /** Children of turn `i` are `children[childStart[i] .. childStart[i + 1]]`: by call, then by their place in the batch. */
  childStart: Int32Array
  children: Int32Array
  /** Number of turns below. */
  below: Int32Array
  /** All turns, each before its children. */
  order: Int32Array
  profiles: string[]
  batches: Schemas['GraphBatch'][]
  edges: Schemas['GraphEdge'][]
  truncated: boolean
}

/** Names stand on canvases and in lines of their own, where no marks can stand. */
const shown = (edge: Schemas['GraphEdge']) => (edge.tool ? { ...edge, tool: plain(edge.tool) } : edge)

/** Joins the pages of a graph. Their turns, profiles, batches and edges are told apart by their ids. */
export function runOf(pages: Graph[]): Run {
  const n = pages.reduce((sum, page) => sum + page.n, 0)
  const ids: string[] = []
  const place = new Map<string, number>()
  for (const page of pages) {
    for (const id of page.ids) {
      if (place.has(id)) continue
      place.set(id, ids.length)
      ids.push(id)
    }
  }
  const run: Run = {
    n: ids.length,
    ids,
    place,
    parent: new Int32Array(ids.length).fill(-1),
    status: new Uint8Array(ids.length),
    profile: new Int32Array(ids.length).fill(-1),
    batch: new Int32Array(ids.length).fill(-1),
    task: new Int32Array(ids.length).fill(-1),
    edge: new Int32Array(ids.length).fill(-1),
    created: new Float64Array(ids.length),
    finished: new Float64Array(ids.length),
    steps: new Float64Array(ids.length),
    input: new Float64Array(ids.length),
    cached: new Float64Array(ids.length),
    output: new Float64Array(ids.length),
    cost: new Float64Array(ids.length),
    external: new Uint8Array(ids.length),
    forked: new Uint8Array(ids.length),
    depth: new Int32Array(ids.length),
    childStart: new Int32Array(ids.length + 1),
    children: new Int32Array(Math.max(0, n)),
    below: new Int32Array(ids.length),
    order: new Int32Array(ids.length),
    profiles: [],
    batches: [],
    edges: [],
    truncated: pages.some(page => page.truncated),
  }
  const profiles = new Map<string, number>()
  const batches = new Map<string, number>()
  const edges = new Map<string, number>()
  for (const page of pages) {
    const profileOf = page.profiles.map(name => join(profiles, run.profiles, name, plain(name)))
    const batchOf = page.batches.map(batch => join(batches, run.batches, batch.batch_id, batch))
    const edgeOf = page.edges.map(edge => join(edges, run.edges, edge.tool_call_id, shown(edge)))
    for (let row = 0; row < page.n; row++) {
      const i = place.get(page.ids[row]!)!
      const parent = page.parent[row]!
      const parentId = parent < 0 ? undefined : parent < page.n ? page.ids[parent] : page.above[parent - page.n]
      run.parent[i] = parentId === undefined ? -1 : (place.get(parentId) ?? -1)
      run.status[i] = statusOf(page.status[row]!)
      run.profile[i] = profileOf[page.profile[row]!] ?? -1
      run.batch[i] = batchOf[page.batch[row]!] ?? -1
      run.task[i] = page.task_index[row]!
      run.edge[i] = edgeOf[page.edge[row]!] ?? -1
      run.created[i] = page.created_ms[row]!
      run.finished[i] = page.finished_ms[row]!
      run.steps[i] = page.steps[row]!
      run.input[i] = page.input[row]!
      run.cached[i] = page.cached[row]!
      run.output[i] = page.output[row]!
      run.cost[i] = page.microdollars[row]!
      run.external[i] = page.external[row] ? 1 : 0
      run.forked[i] = page.forked[row] ? 1 : 0
    }
  }
  tree(run)
  return run
}

/** The same run after events: who started whom is as before, so only what events tell is read again. */
export function patchedRun(before: Run, pages: Graph[]): Run {
  const run = {
    ...before,
    status: before.status.slice(),
    finished: before.finished.slice(),
    steps: before.steps.slice(),
  }
  let i = 0
  for (const page of pages) {
    for (let row = 0; row < page.n; row++, i++) {
      run.status[i] = statusOf(page.status[row]!)
      run.finished[i] = page.finished_ms[row]!
      run.steps[i] = page.steps[row]!
    }
  }
  return run
}

function join<T>(places: Map<string, number>, list: T[], key: string, value: T): number {
  let at = places.get(key)
  if (at === undefined) {
    at = list.length
    places.set(key, at)
    list.push(value)
  }
  return at
}

/** The call that asked for a turn, as a number: turns of one call are drawn together. */
export const groupOf = (run: Pick<Run, 'edge' | 'batch'>, i: number): number =>
  run.edge[i]! >= 0 ? run.edge[i]! : run.batch[i]! >= 0 ? -2 - run.batch[i]! : -1

function tree(run: Run) {
  const { n, parent, childStart, children, order, depth, below } = run
  for (let i = 0; i < n; i++) if (parent[i]! >= 0) childStart[parent[i]! + 1]!++
  for (let i = 0; i < n; i++) childStart[i + 1]! += childStart[i]!
  const next = childStart.slice()
  for (let i = 0; i < n; i++) if (parent[i]! >= 0) children[next[parent[i]!]!++] = i
  const first = new Map<number, number>()
  for (let i = 0; i < n; i++) {
    const [from, to] = [childStart[i]!, childStart[i + 1]!]
    if (to - from < 2) continue
    first.clear()
    let isSorted = true
    for (let at = from; at < to; at++) {
      const [child, before] = [children[at]!, children[at - 1]!]
      const group = groupOf(run, child)
      const isSame = at > from && group === groupOf(run, before)
      if (at > from && (isSame ? run.task[child]! < run.task[before]! : first.has(group))) isSorted = false
      if (!first.has(group)) first.set(group, child)
    }
    if (isSorted) continue
    children
      .subarray(from, to)
      .sort((a, b) => first.get(groupOf(run, a))! - first.get(groupOf(run, b))! || run.task[a]! - run.task[b]! || a - b)
  }
  let at = 0
  const stack: number[] = []
  for (let i = n - 1; i >= 0; i--) if (parent[i]! < 0) stack.push(i)
  while (stack.length > 0) {
    const i = stack.pop()!
    order[at++] = i
    depth[i] = parent[i]! < 0 ? 0 : depth[parent[i]!]! + 1
    for (let c = childStart[i + 1]! - 1; c >= childStart[i]!; c--) stack.push(children[c]!)
  }
  for (let k = n - 1; k > 0; k--) {
    const i = order[k]!
    if (parent[i]! >= 0) below[parent[i]!]! += below[i]! + 1
  }
}

export interface Totals {
  turns: number
  steps: number
  input: number
  cached: number
  output: number
  cost: number
  failed: number
}

export function totals(run: Run): Totals {
  const sum: Totals = { turns: run.n, steps: 0, input: 0, cached: 0, output: 0, cost: 0, failed: 0 }
  for (let i = 0; i < run.n; i++) {
    sum.steps += run.steps[i]!
    sum.input += run.input[i]!
    sum.cached += run.cached[i]!
    sum.output += run.output[i]!
    sum.cost += run.cost[i]!
    if (run.status[i] === 2 || run.status[i] === 4) sum.failed++
  }
  return sum
}

export const nameOf = (run: Run, i: number): string => run.profiles[run.profile[i]!] ?? '—'

/** Number of a turn among its siblings of the same profile, from 1. 0 if it is the only one. */
export function numberOf(run: Run, i: number): number {
  const parent = run.parent[i]!
  if (parent < 0) return 0
  let [count, own] = [0, 0]
  for (let c = run.childStart[parent]!; c < run.childStart[parent + 1]!; c++) {
    const other = run.children[c]!
    if (run.profile[other] !== run.profile[i]) continue
    count++
    if (other === i) own = count
  }
  return count > 1 ? own : 0
}

export type Step = 'parent' | 'child' | 'next' | 'previous'

/** Walks to a turn nearby. Past the last sibling it goes to the next turn of the same depth. */
export function walk(run: Run, from: number, step: Step): number {
  if (step === 'parent') return run.parent[from]! >= 0 ? run.parent[from]! : from
  if (step === 'child')
    return run.childStart[from]! < run.childStart[from + 1]! ? run.children[run.childStart[from]!]! : from
  const by = step === 'next' ? 1 : -1
  for (let k = run.order.indexOf(from) + by; k >= 0 && k < run.n; k += by) {
    if (run.depth[run.order[k]!] === run.depth[from]) return run.order[k]!
  }
  return from
}

/** The next turn that failed or timed out, in the order of the table. */
export function nextFailure(run: Run, from: number): number {
  const start = from < 0 ? -1 : run.order.indexOf(from)
  for (let k = 1; k <= run.n; k++) {
    const i = run.order[(start + k + run.n) % run.n]!
    if (run.status[i] === 2 || run.status[i] === 4) return i
  }
  return -1
}

/** The next turn by cost: the most expensive one first. Without prices, tokens tell. */
export function nextExpensive(run: Run, from: number): number {
  const costs = run.cost.some(cost => cost > 0)
  const weight = (i: number) => (costs ? run.cost[i]! : run.input[i]! + run.output[i]!)
  const ranked = Array.from({ length: run.n }, (_, i) => i).sort((a, b) => weight(b) - weight(a) || a - b)
  const at = from < 0 ? -1 : ranked.indexOf(from)
  return ranked[(at + 1) % ranked.length] ?? -1
}
