/** The time axis: long times in which nothing was done take little room. */
import type { Run } from './model'
import type { Times } from './playhead'

export interface Piece {
  from: number
  to: number
  /** Where it is drawn, 0 to 1. */
  a: number
  b: number
  isIdle: boolean
}

export interface Scale {
  from: number
  to: number
  pieces: Piece[]
}

/** Share of the axis that an idle time takes. */
const IDLE_SHARE = 0.04

export function scaleOf(run: Run, times: Times, now: number): Scale {
  let [from, to] = [Number.POSITIVE_INFINITY, 0]
  let isOpen = false
  for (let i = 0; i < run.n; i++) {
    from = Math.min(from, run.created[i]!)
    if (run.finished[i]! < 0) isOpen = true
    else to = Math.max(to, run.finished[i]!)
  }
  if (isOpen) to = Math.max(to, now)
  if (from === Number.POSITIVE_INFINITY) [from, to] = [now - 1, now]
  if (to <= from) to = from + 1
  const busy = busyOf(run, times, from, to)
  const work = busy.reduce((sum, [a, b]) => sum + b - a, 0)
  const long = Math.max(4_000, work * 0.3)
  const cuts: [number, number][] = []
  let at = from
  for (const [a, b] of [...busy, [to, to] as [number, number]]) {
    if (a - at > long) cuts.push([at, a])
    at = Math.max(at, b)
  }
  return withIdle(from, to, cuts)
}

export function withIdle(from: number, to: number, idle: [number, number][]): Scale {
  const idleTime = idle.reduce((sum, [a, b]) => sum + b - a, 0)
  const share = Math.min(IDLE_SHARE, 0.5 / Math.max(1, idle.length))
  const rest = 1 - share * idle.length
  const work = Math.max(1, to - from - idleTime)
  const pieces: Piece[] = []
  let [at, a] = [from, 0]
  const add = (end: number, isIdle: boolean) => {
    if (end <= at) return
    const b = a + (isIdle ? share : ((end - at) / work) * rest)
    pieces.push({ from: at, to: end, a, b, isIdle })
    at = end
    a = b
  }
  for (const [start, end] of idle) {
    add(start, false)
    add(end, true)
  }
  add(to, false)
  const last = pieces.at(-1)
  if (last) last.b = 1
  return { from, to, pieces }
}

/** Times in which something was done: joined, in order. Waiting for a person or for a child is not doing; neither is a turn whose record is not loaded. */
function busyOf(run: Run, times: Times, from: number, to: number): [number, number][] {
  const all: [number, number][] = []
  for (let i = 0; i < run.n; i++) {
    if (times.start[i] === times.start[i + 1]) {
      all.push([run.created[i]!, run.finished[i]! < 0 ? to : run.finished[i]!])
      continue
    }
    for (let k = times.start[i]!; k < times.start[i + 1]!; k++) {
      const one = times.at[k]!
      if (one.kind === 'child' || one.kind === 'person') continue
      // A call of a tool that asks a person is open as long as the question.
      if (one.kind === 'tool' && asks(times, i, one.ref ?? null)) {
        all.push([one.from_ms, one.from_ms])
        if (one.to_ms != null) all.push([one.to_ms, one.to_ms])
        continue
      }
      all.push([one.from_ms, Math.min(to, one.to_ms ?? to)])
    }
    if (run.finished[i]! >= 0) all.push([run.finished[i]!, run.finished[i]!])
  }
  all.sort((a, b) => a[0] - b[0])
  const joined: [number, number][] = [[from, from]]
  for (const [a, b] of all) {
    const last = joined.at(-1)!
    if (a <= last[1]) last[1] = Math.max(last[1], b)
    else joined.push([a, b])
  }
  return joined
}

function asks(times: Times, i: number, ref: string | null): boolean {
  for (let k = times.start[i]!; k < times.start[i + 1]!; k++) {
    if (times.at[k]!.kind === 'person' && times.at[k]!.ref === ref) return true
  }
  return false
}

/** Where a time is drawn, 0 to 1. */
export function toShare(scale: Scale, t: number): number {
  if (t <= scale.from) return 0
  for (const piece of scale.pieces) {
    if (t <= piece.to) return piece.a + ((t - piece.from) / (piece.to - piece.from)) * (piece.b - piece.a)
  }
  return 1
}

/** Which time is drawn at a place. */
export function toTime(scale: Scale, share: number): number {
  if (share <= 0) return scale.from
  for (const piece of scale.pieces) {
    if (share <= piece.b) return piece.from + ((share - piece.a) / (piece.b - piece.a)) * (piece.to - piece.from)
  }
  return scale.to
}

/** Round times for the marks of an axis, in milliseconds from its start. */
export function niceStep(span: number, marks: number): number {
  const raw = span / Math.max(1, marks)
  const steps = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000,
  ]
  const long = [900_000, 1_800_000, 3_600_000, 7_200_000, 21_600_000, 43_200_000, 86_400_000, 604_800_000]
  return [...steps, ...long].find(step => step >= raw) ?? raw
}
