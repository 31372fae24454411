/** How every turn of a run was at a time. */
import { OPEN, type Run, type Segment, statuses } from './model'

/** What a turn is or does. `absent`: it had not begun. `open`: it has begun and not ended; what it did then is not known. */
export const looks = [
  'absent',
  'queued',
  'running',
  'waiting',
  'asks',
  'lost',
  'success',
  'failed',
  'canceled',
  'timeout',
  'open',
] as const
export type RunLook = (typeof looks)[number]
export const ABSENT = 0
const UNKNOWN = looks.indexOf('open')

/** Which of two looks is shown if one pixel stands for both. */
export const weight = [0, 2, 4, 3, 5, 6, 1, 8, 2, 7, 3]

const doing: Record<Segment['kind'], number> = {
  queued: looks.indexOf('queued'),
  model: looks.indexOf('running'),
  tool: looks.indexOf('waiting'),
  child: looks.indexOf('waiting'),
  person: looks.indexOf('asks'),
  lost: looks.indexOf('lost'),
}
const ended = statuses.map(status => Math.max(0, looks.indexOf(status as RunLook)))
/** Of several segments at one time, the one that says most is shown. */
const says: Record<Segment['kind'], number> = { queued: 1, model: 5, tool: 2, child: 3, person: 6, lost: 4 }

/** Segments of a run in columns, by turn. */
export interface Times {
  /** Segments of turn `i` are `at[start[i] .. start[i + 1]]`. */
  start: Int32Array
  at: Segment[]
  truncated: boolean
}

export function timesOf(run: Run, segments: Segment[], truncated: boolean): Times {
  const start = new Int32Array(run.n + 1)
  const known = segments.filter(one => run.place.has(one.agent_turn_id))
  for (const one of known) start[run.place.get(one.agent_turn_id)! + 1]!++
  for (let i = 0; i < run.n; i++) start[i + 1]! += start[i]!
  const next = start.slice()
  const at: Segment[] = new Array(known.length)
  for (const one of known) at[next[run.place.get(one.agent_turn_id)!]!++] = one
  return { start, at, truncated }
}

/** How all turns were at a time: an index into `looks` for each. `t` of `Infinity` is now. */
export function looksAt(
  run: Run,
  times: Times,
  t: number,
  losses?: ReadonlyMap<number, { from: number; to: number }[]>,
): Uint8Array {
  const now = new Uint8Array(run.n)
  for (let i = 0; i < run.n; i++) {
    if (run.created[i]! > t) continue
    if (run.status[i] !== OPEN && run.finished[i]! <= t) {
      now[i] = ended[run.status[i]!]!
      continue
    }
    let best: Segment['kind'] | null = null
    for (let k = times.start[i]!; k < times.start[i + 1]!; k++) {
      const one = times.at[k]!
      const isNow = one.from_ms <= t && (one.to_ms == null || one.to_ms > t)
      if (isNow && (best === null || says[one.kind] > says[best])) best = one.kind
    }
    if (losses?.get(i)?.some(loss => loss.from <= t && t < loss.to)) best = 'lost'
    // Between two segments a worker has it, as far as the record tells. Without segments, or if some were not loaded, it does not tell.
    const isTold = !times.truncated && times.start[i] !== times.start[i + 1]
    now[i] = best !== null ? doing[best] : isTold ? doing.model : UNKNOWN
  }
  return now
}

/** Steps that a turn had taken at a time. */
export function stepsAt(run: Run, times: Times, i: number, t: number): number {
  if (t === Number.POSITIVE_INFINITY || times.start[i] === times.start[i + 1]) return run.steps[i]!
  let steps = 0
  for (let k = times.start[i]!; k < times.start[i + 1]!; k++) {
    const one = times.at[k]!
    if (one.kind === 'model' && one.to_ms != null && one.to_ms <= t) steps++
  }
  return Math.min(steps, run.steps[i]!)
}

/** How long a turn had taken at a time. */
export const tookAt = (run: Run, i: number, t: number, now: number): number =>
  Math.max(
    0,
    Math.min(run.finished[i]! < 0 ? now : run.finished[i]!, t, Math.max(now, run.finished[i]!)) - run.created[i]!,
  )

/** Ended tasks of a batch at a time: those whose turns are known. */
export function endedAt(run: Run, members: Iterable<number>, t: number): number {
  let n = 0
  for (const i of members) if (run.status[i] !== OPEN && run.finished[i]! <= t) n++
  return n
}
