/** Draws the graph of a run on a canvas. Only what is in view is drawn, and text only where it can be read. */
import { BRACKET, boxOf, CELL, cellAt, firstBelow, GAP, type Layout, stripColumns } from './layout'
import { nameOf, numberOf, OPEN, type Run } from './model'
import { ABSENT, endedAt, looks, stepsAt, type Times, tookAt, weight } from './playhead'
import { type Colours, lookColour, lookGlyph, mix } from './theme'

export type Colour = 'status' | 'cost' | 'cache' | 'external'

export interface View {
  /** Left upper corner of the world on the canvas, in CSS pixels, and the size of one unit. */
  x: number
  y: number
  zoom: number
}

export interface Scene {
  run: Run
  plan: Layout
  times: Times
  looks: Uint8Array
  /** The playhead. `Infinity` at the live edge. */
  t: number
  now: number
  selected: number
  over: number
  colour: Colour
  colours: Colours
  /** Turns whose children are hidden. */
  closed: ReadonlySet<number>
  /** When another worker took over a turn whose worker was lost. */
  lost: ReadonlyMap<number, number>
  forkedFrom: string | null
  say: Say
}

export interface Say {
  took(ms: number): string
  money(microdollars: number): string
  steps(n: number): string
  fold(n: string, name: string): string
  below(n: string): string
  number(n: number): string
  external: string
  forkOf(id: string): string
  takenOver: string
  unknownTool: string
  turns: string
}

/** Text is drawn if its letters are at least this high. */
const READABLE = 9

export function fitAll(plan: Layout, width: number, height: number, most = 1.2): View {
  const pad = Math.min(32, width / 20)
  const zoom = Math.min(
    most,
    (width - 2 * pad) / Math.max(1, plan.width),
    (height - 2 * pad) / Math.max(1, plan.height),
  )
  const z = Math.max(zoom, 0.001)
  return { zoom: z, x: (width - plan.width * z) / 2, y: (height - plan.height * z) / 2 }
}

/** The first view: all of it, unless that would be too small to see anything; then its beginning. */
export function firstView(plan: Layout, width: number, height: number): View {
  const all = fitAll(plan, width, height)
  if (all.zoom >= 0.72 || plan.n === 0) return all
  // On a narrow screen a small run is shown at a size that can be read, from its beginning.
  if (width < 600 && plan.n <= 64) {
    const zoom = 0.8
    return { zoom, x: 12, y: height / 2 - (plan.y[0]! + plan.h[0]! / 2) * zoom }
  }
  const wide = (width - 48) / Math.max(1, plan.width)
  const zoom = Math.min(1, Math.max(all.zoom, Math.min(0.8, Math.max(wide, 0.06))))
  const top =
    plan.height * zoom <= height ? (height - plan.height * zoom) / 2 : height / 2 - (plan.y[0]! + plan.h[0]! / 2) * zoom
  return { zoom, x: plan.width * zoom <= width ? (width - plan.width * zoom) / 2 : 24, y: top }
}

/** Share of the largest value, for colours that tell an amount. */
export function amounts(run: Run, colour: Colour): Float32Array {
  const all = new Float32Array(run.n)
  if (colour === 'cost') {
    const values = run.cost.some(cost => cost > 0) ? run.cost : run.input.map((input, i) => input + run.output[i]!)
    let most = 0
    for (const value of values) most = Math.max(most, value)
    for (let i = 0; i < run.n; i++) all[i] = most > 0 ? values[i]! / most : 0
  } else if (colour === 'cache') {
    for (let i = 0; i < run.n; i++) all[i] = run.input[i]! > 0 ? run.cached[i]! / run.input[i]! : 0
  } else if (colour === 'external') {
    for (let i = 0; i < run.n; i++) all[i] = run.external[i]!
  }
  return all
}

const shares = [0, 0.05, 0.2, 0.4, 0.7, 1]
const level = (share: number) => shares.findIndex(limit => share <= limit)

/** Colours of turns: a palette, and an index into it for each turn. */
function paint(scene: Scene): { palette: string[]; of: Uint8Array } {
  const { colours, run } = scene
  if (scene.colour === 'status') return { palette: looks.map(look => lookColour(colours, look)), of: scene.looks }
  const key = { cost: colours.accent, cache: colours.success, external: colours.outside }[scene.colour]
  const palette = [
    colours.line,
    ...[0, 0.2, 0.4, 0.6, 0.8, 1].map(share => mix(mix(colours.line, colours.muted, 0.35), key, share)),
  ]
  const all = amountsOf(scene)
  const of = new Uint8Array(run.n)
  for (let i = 0; i < run.n; i++) of[i] = scene.looks[i] === ABSENT ? 0 : 1 + Math.max(0, level(all[i]!))
  return { palette, of }
}

const cache = new WeakMap<Run, Map<Colour, Float32Array>>()
function amountsOf(scene: Scene): Float32Array {
  let known = cache.get(scene.run)
  if (!known) {
    known = new Map()
    cache.set(scene.run, known)
  }
  let all = known.get(scene.colour)
  if (!all) {
    all = amounts(scene.run, scene.colour)
    known.set(scene.colour, all)
  }
  return all
}

const widths = new Map<string, number>()
/** Cuts text to a width. Widths are measured once. */
function cut(context: CanvasRenderingContext2D, text: string, most: number): string {
  const measure = (part: string) => {
    const key = `${context.font}|${part}`
    let width = widths.get(key)
    if (width === undefined) {
      width = context.measureText(part).width
      if (widths.size > 20_000) widths.clear()
      widths.set(key, width)
    }
    return width
  }
  if (measure(text) <= most) return text
  let [low, high] = [0, text.length]
  while (low < high) {
    const middle = (low + high + 1) >> 1
    if (measure(`${text.slice(0, middle)}…`) <= most) low = middle
    else high = middle - 1
  }
  return low === 0 ? '' : `${text.slice(0, low)}…`
}

export function draw(
  context: CanvasRenderingContext2D,
  scene: Scene,
  view: View,
  width: number,
  height: number,
  ratio: number,
) {
  const { plan, colours } = scene
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.fillStyle = colours.bg
  context.fillRect(0, 0, width, height)
  const zoom = view.zoom
  context.setTransform(ratio * zoom, 0, 0, ratio * zoom, ratio * view.x, ratio * view.y)
  const seen = {
    left: -view.x / zoom,
    top: -view.y / zoom,
    right: (width - view.x) / zoom,
    bottom: (height - view.y) / zoom,
  }
  const colour = paint(scene)
  const columns = plan.columnStart.length - 1
  for (let d = 0; d < columns; d++) {
    if (plan.columnStart[d] === plan.columnStart[d + 1]) continue
    const left = plan.x[plan.column[plan.columnStart[d]!]!]!
    if (left - GAP > seen.right) break
    if (d > 0) calls(context, scene, d, left, seen, zoom)
    const isSmall = 22 * zoom < READABLE / 1.6
    if (isSmall) blocks(context, scene, d, seen, zoom, colour)
    else boxes(context, scene, d, seen, zoom, colour)
    strips(context, scene, d, seen, zoom, colour)
  }
  if (scene.forkedFrom !== null) fork(context, scene, zoom)
  outline(context, scene, zoom, scene.over, colours.muted, 1.5)
  outline(context, scene, zoom, scene.selected, colours.accent, 2)
}

interface Seen {
  left: number
  top: number
  right: number
  bottom: number
}
type Paint = ReturnType<typeof paint>

/** Lines from the parents of a column's groups to their brackets, and back where they are joined. */
function calls(context: CanvasRenderingContext2D, scene: Scene, d: number, left: number, seen: Seen, zoom: number) {
  const { plan, run, colours } = scene
  const groups = plan.groups
  const thin = 1 / zoom
  const line = Math.max(1.2, thin)
  const showsText = 12 * zoom >= READABLE
  const showsArrows = zoom > 0.25
  const bracket = left - BRACKET
  let lastRow = -1
  for (let g = plan.groupStart[d]!; g < plan.groupStart[d + 1]!; g++) {
    const parent = groups.parent[g]!
    const middle = (groups.top[g]! + groups.bottom[g]!) / 2
    const from = plan.y[parent]! + plan.h[parent]! / 2
    const [top, bottom] = [Math.min(groups.top[g]!, from), Math.max(groups.bottom[g]!, from)]
    if (bottom < seen.top) continue
    if (groups.top[g]! > seen.bottom && from > seen.bottom) continue
    if (top > seen.bottom) continue
    // Many groups on one row of pixels are one line.
    if ((bottom - top) * zoom < 1.5) {
      const row = Math.floor(top * zoom)
      if (row === lastRow) continue
      lastRow = row
    }
    const first = groups.first[g]!
    const isThere = run.created[first]! <= scene.t
    const edge = run.edges[run.edge[first]!]
    const batch = run.batches[run.batch[first]!]
    const closed = batch?.closed_at
      ? Date.parse(batch.closed_at)
      : edge?.answered_at
        ? Date.parse(edge.answered_at)
        : null
    const isJoined = closed !== null && closed <= scene.t
    const right = plan.x[parent]! + plan.w[parent]!
    const bus = right + 12
    const isStraight = Math.abs(middle - from) < 1
    const low = showsArrows && batch ? 5 : 0
    context.globalAlpha = isThere ? 1 : 0.25
    context.strokeStyle = isThere ? colours.muted : colours.line
    context.lineWidth = line
    context.beginPath()
    // The call: from the parent to the bracket, and from there to each turn.
    if (isStraight) {
      context.moveTo(right, middle - low)
    } else {
      context.moveTo(right, from)
      context.lineTo(bus, from)
      context.lineTo(bus, middle - low)
    }
    context.lineTo(bracket, middle - low)
    const [a, b] = [groups.memberStart[g]!, groups.memberStart[g + 1]!]
    const firstItem = groups.members[a]!
    const lastItem = groups.members[b - 1]!
    const start = plan.y[firstItem]! + plan.h[firstItem]! / 2
    const end = plan.y[lastItem]! + plan.h[lastItem]! / 2
    context.moveTo(bracket, Math.min(start, middle - low))
    context.lineTo(bracket, Math.max(end, middle + low))
    if (18 * zoom >= 2) {
      for (let m = a; m < b; m++) {
        const k = groups.members[m]!
        const y = plan.y[k]! + plan.h[k]! / 2
        if (y < seen.top - 20 || y > seen.bottom + 20) continue
        context.moveTo(bracket, y)
        context.lineTo(left - 1, y)
      }
    }
    context.stroke()
    if (showsArrows && b - a < 200) {
      context.fillStyle = isThere ? colours.muted : colours.line
      for (let m = a; m < b; m++) {
        const k = groups.members[m]!
        const y = plan.y[k]! + plan.h[k]! / 2
        if (y < seen.top - 20 || y > seen.bottom + 20) continue
        arrow(context, plan.turn[k]! < 0 ? left - 3 : left, y, 1)
      }
    }
    // The join: back to the parent. It is dotted until it happens.
    const start2 = isStraight ? right : bus
    if (showsArrows && batch) {
      const colour = isJoined ? joinColour(colours, batch.status) : colours.muted
      context.strokeStyle = colour
      context.fillStyle = colour
      context.setLineDash(isJoined ? [] : [2, 3])
      context.beginPath()
      context.moveTo(bracket, middle + low)
      context.lineTo(start2 + (isJoined ? 6 : 2), middle + low)
      context.stroke()
      context.setLineDash([])
      if (isJoined) arrow(context, start2 + 1, middle + low, -1)
    }
    if (showsText && isThere) {
      const room = bracket - start2 - 10
      context.textAlign = 'center'
      context.textBaseline = 'alphabetic'
      context.font = `12px ${colours.mono}`
      context.fillStyle = colours.text
      const centre = (start2 + bracket) / 2 + 2
      const tool = edge?.tool ?? batch?.tool ?? scene.say.unknownTool
      context.fillText(cut(context, tool, room), centre, middle - low - 5)
      if (batch) {
        const done = Math.min(batch.n_tasks, endedAt(run, membersOf(scene, g), scene.t))
        context.font = `12px ${colours.sans}`
        context.fillStyle = isJoined ? joinColour(colours, batch.status) : colours.muted
        const mark = isJoined ? (batch.status === 'success' ? ' ✓' : ' ✗') : ''
        const text = `${scene.say.number(done)}/${scene.say.number(batch.n_tasks)}${mark}${batch.fail_fast ? ' ⚡' : ''}`
        context.fillText(cut(context, text, room), centre, middle + low + 14)
      }
    }
    context.globalAlpha = 1
  }
}

function joinColour(colours: Colours, status: string): string {
  if (status === 'success') return colours.success
  if (status === 'timeout') return colours.timeout
  return status === 'canceled' ? colours.canceled : status === 'failed' ? colours.failed : colours.muted
}

function* membersOf(scene: Scene, g: number): Generator<number> {
  const { plan, run } = scene
  const groups = plan.groups
  for (let m = groups.memberStart[g]!; m < groups.memberStart[g + 1]!; m++) {
    const k = groups.members[m]!
    if (plan.turn[k]! >= 0) yield plan.turn[k]!
    else for (let c = plan.stripFrom[k]!; c < plan.stripTo[k]!; c++) yield run.children[c]!
  }
}

function arrow(context: CanvasRenderingContext2D, x: number, y: number, way: 1 | -1) {
  context.beginPath()
  context.moveTo(x, y)
  context.lineTo(x - way * 7, y - 3.5)
  context.lineTo(x - way * 7, y + 3.5)
  context.fill()
}

/** Turns as boxes, with text if it can be read. */
function boxes(context: CanvasRenderingContext2D, scene: Scene, d: number, seen: Seen, zoom: number, colour: Paint) {
  const { plan, run, colours, say } = scene
  const showsName = 13 * zoom >= READABLE
  const showsMore = 11 * zoom >= READABLE - 0.5
  const thin = Math.max(1, 1 / zoom)
  const end = plan.columnStart[d + 1]!
  for (let at = firstBelow(plan, d, seen.top); at < end; at++) {
    const k = plan.column[at]!
    const i = plan.turn[k]!
    const [x, y, w, h] = [plan.x[k]!, plan.y[k]!, plan.w[k]!, plan.h[k]!]
    if (y > seen.bottom) break
    if (i < 0 || x + w < seen.left) continue
    const look = scene.looks[i]!
    const own = colour.palette[colour.of[i]!]!
    if (look === ABSENT) {
      context.strokeStyle = colours.line
      context.lineWidth = thin
      context.setLineDash([3, 4])
      context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1)
      context.setLineDash([])
      continue
    }
    const isSelected = i === scene.selected
    if (scene.closed.has(i)) {
      context.fillStyle = colours.raised
      context.strokeStyle = colours.line
      context.lineWidth = thin
      round(context, x + 5, y + 5, w, h, 3)
      context.fill()
      context.stroke()
    }
    context.fillStyle = isSelected ? colours.selected : colours.surface
    context.strokeStyle =
      scene.colour === 'status' && look !== 6 ? mix(colours.line, own, 0.7) : mix(colours.line, colours.muted, 0.35)
    context.lineWidth = thin
    if (run.forked[i]) context.setLineDash([5, 3])
    round(context, x, y, w, h, 3)
    context.fill()
    context.stroke()
    context.setLineDash([])
    context.fillStyle = own
    if (zoom > 0.5) {
      // The edge in the colour of the turn, with the corners of the box.
      context.beginPath()
      context.roundRect(x, y, 4, h, [3, 0, 0, 3])
      context.fill()
    } else context.fillRect(x, y, Math.max(4, w * (zoom < 0.35 ? 1 : 0.12)), h)
    if (!showsName) continue
    context.textAlign = 'left'
    context.textBaseline = 'alphabetic'
    const kind = looks[look]!
    context.font = `13px ${colours.sans}`
    context.fillStyle = lookColour(colours, kind)
    context.fillText(lookGlyph[kind], x + 12, y + 17)
    const marks = `${scene.t >= (scene.lost.get(i) ?? Number.NaN) ? ' ↻' : ''}${run.external[i] ? ' ⚠' : ''}${run.forked[i] ? ' ⑂' : ''}`
    let room = w - 36
    if (marks !== '') {
      context.textAlign = 'right'
      context.fillStyle = run.external[i] ? colours.outside : colours.failed
      context.fillText(marks.trim(), x + w - 8, y + 17)
      room -= 8 + 12 * (marks.length / 2)
      context.textAlign = 'left'
    }
    context.fillStyle = colours.text
    context.font = `600 13px ${colours.sans}`
    const number = numbers(run, i)
    const name = cut(context, number > 0 ? `${nameOf(run, i)} ${number}` : nameOf(run, i), room)
    context.fillText(name, x + 28, y + 17)
    if (!showsMore) continue
    context.font = `11px ${colours.sans}`
    context.fillStyle = colours.muted
    const isWhole = run.status[i] !== OPEN && run.finished[i]! <= scene.t
    const parts = [say.steps(stepsAt(run, scene.times, i, scene.t)), say.took(tookAt(run, i, scene.t, scene.now))]
    if (isWhole || scene.t === Number.POSITIVE_INFINITY) parts.push(say.money(run.cost[i]!))
    context.fillText(cut(context, parts.join(' · '), w - 20), x + 12, y + 34)
    if (scene.closed.has(i)) {
      context.fillText(say.below(say.number(run.below[i]!)), x + w + 12, y + h / 2 + 4)
    }
  }
}

const numbered = new WeakMap<Run, Int32Array>()
function numbers(run: Run, i: number): number {
  let known = numbered.get(run)
  if (!known) {
    known = new Int32Array(run.n).fill(-1)
    numbered.set(run, known)
  }
  if (known[i]! < 0)
    known[i] =
      run.parent[i]! >= 0 && run.childStart[run.parent[i]! + 1]! - run.childStart[run.parent[i]!]! > 5_000
        ? 0
        : numberOf(run, i)
  return known[i]!
}

/** Turns that are too small for a box: one block per row of pixels, in the colour of the one that matters most. */
function blocks(context: CanvasRenderingContext2D, scene: Scene, d: number, seen: Seen, zoom: number, colour: Paint) {
  const { plan } = scene
  const isStatus = scene.colour === 'status'
  const end = plan.columnStart[d + 1]!
  let [row, bottom, best, x, w] = [Number.NaN, 0, -1, 0, 0]
  let style = ''
  const flush = () => {
    if (best < 0) return
    const next = colour.palette[best]!
    if (next !== style) {
      context.fillStyle = next
      style = next
    }
    context.fillRect(x, row / zoom, w, Math.max(bottom - row / zoom, 1 / zoom))
  }
  for (let at = firstBelow(plan, d, seen.top); at < end; at++) {
    const k = plan.column[at]!
    const y = plan.y[k]!
    if (y > seen.bottom) break
    const i = plan.turn[k]!
    if (i < 0) continue
    const own = colour.of[i]!
    const pixel = Math.floor(y * zoom)
    if (pixel === row) {
      const isMore = isStatus ? weight[own]! > weight[best]! : own > best
      if (isMore) best = own
      bottom = Math.max(bottom, y + plan.h[k]!)
      continue
    }
    flush()
    row = pixel
    bottom = y + plan.h[k]!
    best = own
    x = plan.x[k]!
    w = plan.w[k]!
  }
  flush()
}

/** Strips of many siblings: one cell each. */
function strips(context: CanvasRenderingContext2D, scene: Scene, d: number, seen: Seen, zoom: number, colour: Paint) {
  const { plan, run, colours, say } = scene
  const end = plan.columnStart[d + 1]!
  for (let at = firstBelow(plan, d, seen.top); at < end; at++) {
    const k = plan.column[at]!
    if (plan.y[k]! > seen.bottom) break
    if (plan.turn[k]! >= 0) continue
    const [from, to] = [plan.stripFrom[k]!, plan.stripTo[k]!]
    const columns = stripColumns(to - from)
    const [left, top] = cellAt(plan, k, 0)
    context.fillStyle = colours.surface
    context.strokeStyle = mix(colours.line, colours.muted, 0.35)
    context.lineWidth = Math.max(1, 1 / zoom)
    round(context, plan.x[k]! - 3, plan.y[k]! - 3, plan.w[k]! + 6, plan.h[k]! + 6, 3)
    context.fill()
    context.stroke()
    const firstRow = Math.max(0, Math.floor((seen.top - top) / CELL))
    const lastRow = Math.min(Math.ceil((to - from) / columns), Math.ceil((seen.bottom - top) / CELL))
    const firstColumn = Math.max(0, Math.floor((seen.left - left) / CELL))
    const lastColumn = Math.min(columns, Math.ceil((seen.right - left) / CELL))
    const size = CELL - (zoom > 0.4 ? 1.5 : 0)
    // One path for each colour: ten thousand cells are a few fills.
    const paths = colour.palette.map(() => [] as number[])
    for (let row = firstRow; row < lastRow; row++) {
      for (let column = firstColumn; column < lastColumn; column++) {
        const cell = row * columns + column
        if (from + cell >= to) break
        paths[colour.of[run.children[from + cell]!]!]!.push(left + column * CELL, top + row * CELL)
      }
    }
    for (let n = 0; n < paths.length; n++) {
      const path = paths[n]!
      if (path.length === 0) continue
      context.fillStyle = colour.palette[n]!
      for (let p = 0; p < path.length; p += 2) context.fillRect(path[p]!, path[p + 1]!, size, size)
    }
    if (scene.colour === 'status' && CELL * zoom >= 8) marks(context, scene, paths, size)
    if (12 * zoom >= READABLE) {
      context.font = `12px ${colours.sans}`
      context.textAlign = 'left'
      context.textBaseline = 'alphabetic'
      context.fillStyle = colours.text
      const name = oneName(run, from, to) ?? say.turns
      context.fillText(
        cut(context, say.fold(say.number(to - from), name), plan.w[k]! - 4),
        plan.x[k]! + 2,
        plan.y[k]! + 13,
      )
    }
  }
}

/** The name of all turns of a strip, if it is one. */
function oneName(run: Run, from: number, to: number): string | null {
  const profile = run.profile[run.children[from]!]
  for (let c = from; c < to; c++) if (run.profile[run.children[c]!] !== profile) return null
  return nameOf(run, run.children[from]!)
}

/** Glyphs in the cells that are not an ordinary success, so that colour is not all that tells them. */
function marks(context: CanvasRenderingContext2D, scene: Scene, paths: number[][], size: number) {
  context.font = `8px ${scene.colours.sans}`
  context.textAlign = 'center'
  context.textBaseline = 'middle'
  context.fillStyle = scene.colours.surface
  let drawn = 0
  for (let look = 0; look < paths.length; look++) {
    const kind = looks[look]!
    if (kind === 'absent' || kind === 'success') continue
    const path = paths[look]!
    for (let p = 0; p < path.length && drawn < 600; p += 2, drawn++) {
      context.fillText(lookGlyph[kind], path[p]! + size / 2, path[p + 1]! + size / 2 + 0.5)
    }
  }
}

/** A run that is a fork: a dashed line from the run that it came from. */
function fork(context: CanvasRenderingContext2D, scene: Scene, zoom: number) {
  const { plan, colours } = scene
  if (plan.n === 0) return
  const y = plan.y[0]! + plan.h[0]! / 2
  context.strokeStyle = colours.muted
  context.fillStyle = colours.muted
  context.lineWidth = Math.max(1.2, 1 / zoom)
  context.setLineDash([5, 4])
  context.beginPath()
  context.moveTo(plan.x[0]! - 70, y)
  context.lineTo(plan.x[0]! - 6, y)
  context.stroke()
  context.setLineDash([])
  arrow(context, plan.x[0]!, y, 1)
  if (11 * zoom < READABLE) return
  context.font = `11px ${colours.sans}`
  context.textAlign = 'right'
  context.textBaseline = 'alphabetic'
  context.fillText(`⑂ ${scene.say.forkOf(scene.forkedFrom!.slice(-8))}`, plan.x[0]! - 8, y - 6)
}

function outline(
  context: CanvasRenderingContext2D,
  scene: Scene,
  zoom: number,
  turn: number,
  colour: string,
  width: number,
) {
  if (turn < 0) return
  const box = boxOf(scene.plan, scene.run, turn)
  if (!box) return
  const least = 5 / zoom
  const [w, h] = [Math.max(box.w, least), Math.max(box.h, least)]
  context.strokeStyle = colour
  context.lineWidth = width / zoom
  context.setLineDash([])
  round(context, box.x - (w - box.w) / 2, box.y - (h - box.h) / 2, w, h, 3)
  context.stroke()
}

function round(context: CanvasRenderingContext2D, x: number, y: number, w: number, h: number, r: number) {
  context.beginPath()
  context.roundRect(x, y, w, h, r)
}
