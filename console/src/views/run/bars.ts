/** Draws the timeline on a canvas. */
import { nameOf, numberOf, type Run, type Segment } from './model'
import { looks, type Times } from './playhead'
import { niceStep, type Scale, toShare, toTime } from './scale'
import { type Colours, lookColour, lookGlyph, mix } from './theme'

export const ROW = 24
export const AXIS = 26

/** Which part of the axis is shown, 0 to 1. */
export interface Window {
  a: number
  b: number
}

/** A time in which a worker was lost, and another one took over. */
export interface Loss {
  from: number
  to: number
}

export interface Bars {
  run: Run
  times: Times
  scale: Scale
  window: Window
  looks: Uint8Array
  rows: Int32Array
  losses: ReadonlyMap<number, Loss[]>
  t: number
  now: number
  selected: number
  over: number
  colours: Colours
  label: number
  say: {
    took(ms: number): string
    idle(time: string): string
    takenOver: string
    kind(kind: string): string
  }
}

export const glyphOf: Record<Segment['kind'], string> = {
  queued: '≡',
  model: '▶',
  tool: '⚙',
  child: '◔',
  person: '✉',
  lost: '↯',
}

export function kindColour(colours: Colours, kind: Segment['kind']): string {
  if (kind === 'queued') return colours.muted
  if (kind === 'model') return colours.running
  if (kind === 'tool') return colours['layer-tools']
  if (kind === 'child') return colours.waiting
  return kind === 'person' ? colours.asks : colours.failed
}

const patterns = new Map<string, CanvasPattern>()
/** A hatch for a kind: colour is not all that tells them apart. */
function hatch(context: CanvasRenderingContext2D, colours: Colours, kind: Segment['kind']): CanvasPattern | string {
  const colour = kindColour(colours, kind)
  const key = `${kind} ${colour} ${colours.surface}`
  const known = patterns.get(key)
  if (known) return known
  const tile = document.createElement('canvas')
  tile.width = 16
  tile.height = 16
  const inner = tile.getContext('2d')
  if (!inner) return colour
  inner.scale(2, 2)
  inner.fillStyle = mix(colours.surface, colour, kind === 'lost' ? 0.16 : kind === 'queued' ? 0.1 : 0.24)
  inner.fillRect(0, 0, 8, 8)
  inner.strokeStyle = mix(colours.surface, colour, kind === 'queued' ? 0.55 : 0.8)
  inner.fillStyle = inner.strokeStyle
  inner.lineWidth = 1
  inner.beginPath()
  if (kind === 'queued' || kind === 'lost') {
    for (const shift of [-8, 0, 8]) {
      inner.moveTo(shift, 8)
      inner.lineTo(shift + 8, 0)
    }
  }
  if (kind === 'lost') {
    for (const shift of [-8, 0, 8]) {
      inner.moveTo(shift, 0)
      inner.lineTo(shift + 8, 8)
    }
  }
  if (kind === 'tool') {
    inner.moveTo(2, 0)
    inner.lineTo(2, 8)
    inner.moveTo(6, 0)
    inner.lineTo(6, 8)
  }
  inner.stroke()
  if (kind === 'person') {
    for (const [x, y] of [
      [2, 2],
      [6, 6],
    ] as const) {
      inner.beginPath()
      inner.arc(x, y, 1.1, 0, 7)
      inner.fill()
    }
  }
  const made = context.createPattern(tile, 'repeat')
  if (!made) return colour
  made.setTransform(new DOMMatrix().scale(0.5))
  patterns.set(key, made)
  return made
}

/** Draws one segment. */
export function bar(
  context: CanvasRenderingContext2D,
  colours: Colours,
  kind: Segment['kind'],
  x: number,
  y: number,
  w: number,
  h: number,
) {
  const wide = Math.max(1.5, w)
  if (kind === 'child') {
    // Waiting for others is a line: the work is in their rows.
    context.strokeStyle = mix(colours.surface, colours.waiting, 0.8)
    context.lineWidth = 2
    context.setLineDash([2, 3])
    context.beginPath()
    context.moveTo(x, y + h / 2)
    context.lineTo(x + wide, y + h / 2)
    context.stroke()
    context.setLineDash([])
    context.lineWidth = 1
    return
  }
  context.fillStyle = kind === 'model' ? colours.running : hatch(context, colours, kind)
  context.fillRect(x, y, wide, h)
  if (kind === 'model' || w < 3) return
  context.strokeStyle = mix(colours.surface, kindColour(colours, kind), kind === 'queued' ? 0.55 : 0.9)
  context.lineWidth = 1
  context.strokeRect(x + 0.5, y + 0.5, Math.max(1, wide - 1), h - 1)
}

const layers: Segment['kind'][] = ['child', 'queued', 'tool', 'lost', 'person', 'model']

export function drawBars(
  context: CanvasRenderingContext2D,
  bars: Bars,
  width: number,
  height: number,
  scroll: number,
  ratio: number,
) {
  const { colours, run, times, scale, window: part } = bars
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.fillStyle = colours.surface
  context.fillRect(0, 0, width, height)
  const left = bars.label
  const room = Math.max(10, width - left - 20)
  const px = (t: number) => left + ((toShare(scale, t) - part.a) / (part.b - part.a)) * room
  const first = Math.max(0, Math.floor(scroll / ROW))
  const last = Math.min(bars.rows.length, Math.ceil((scroll + height) / ROW))
  const edge = Math.min(bars.t, Math.max(bars.now, scale.to))

  context.save()
  context.beginPath()
  context.rect(0, AXIS, width, height - AXIS)
  context.clip()
  for (let row = first; row < last; row++) {
    const i = bars.rows[row]!
    const y = AXIS + row * ROW - scroll
    if (i === bars.selected || i === bars.over) {
      context.fillStyle = i === bars.selected ? colours.selected : colours.raised
      context.fillRect(0, y, width, ROW)
    }
  }
  context.save()
  context.beginPath()
  context.rect(left, AXIS, width - left, height - AXIS)
  context.clip()
  grid(context, bars, left, room, height, px)
  for (let row = first; row < last; row++) {
    const i = bars.rows[row]!
    const y = AXIS + row * ROW - scroll
    if (run.created[i]! > bars.t) continue
    const end = Math.min(run.finished[i]! < 0 ? Math.max(bars.now, scale.to) : run.finished[i]!, edge)
    const losses = bars.losses.get(i) ?? []
    const [a, b] = [px(run.created[i]!), px(end)]
    context.fillStyle = colours.line
    context.fillRect(a, y + ROW / 2 - 0.5, Math.max(1, b - a), 1)
    const from = times.start[i]!
    const to = times.start[i + 1]!
    if (from === to) {
      context.fillStyle = mix(colours.surface, lookColour(colours, looks[bars.looks[i]!]!), 0.45)
      context.fillRect(a, y + 7, Math.max(1.5, b - a), ROW - 14)
    }
    for (const kind of layers) {
      for (let k = from; k < to; k++) {
        const one = times.at[k]!
        if (one.kind !== kind || one.from_ms > edge) continue
        const stop = Math.min(one.to_ms ?? edge, edge)
        const [x, right] = [px(one.from_ms), px(stop)]
        if (right < left || x > width) continue
        bar(context, colours, kind, x, y + 5, right - x, ROW - 10)
        if (right - x > (kind === 'model' ? 22 : 64) && kind !== 'child' && kind !== 'queued') {
          context.font = `11px ${colours.sans}`
          context.textAlign = 'center'
          context.textBaseline = 'middle'
          context.fillStyle = kind === 'model' ? colours.surface : kindColour(colours, kind)
          if (kind === 'model') context.fillText(glyphOf[kind], (x + right) / 2, y + ROW / 2 + 1)
          else chip(context, colours, glyphOf[kind], (x + right) / 2, y + ROW / 2, kindColour(colours, kind))
        }
      }
    }
    for (const loss of losses) lossMark(context, bars, loss, y, px, edge, room)
    // How it ended.
    if (run.finished[i]! >= 0 && run.finished[i]! <= edge) {
      const look = looks[bars.looks[i]!]!
      if (look !== 'success') {
        context.font = `12px ${colours.sans}`
        context.textAlign = 'left'
        context.textBaseline = 'middle'
        context.fillStyle = lookColour(colours, look)
        context.fillText(lookGlyph[look], b + 4, y + ROW / 2 + 1)
      }
    }
  }
  context.restore()
  labels(context, bars, first, last, scroll)
  context.restore()
  axis(context, bars, left, room, width, height, px)
}

function chip(context: CanvasRenderingContext2D, colours: Colours, text: string, x: number, y: number, colour: string) {
  const wide = context.measureText(text).width + 8
  context.fillStyle = colours.surface
  context.beginPath()
  context.roundRect(x - wide / 2, y - 7, wide, 14, 3)
  context.fill()
  context.fillStyle = colour
  context.textAlign = 'center'
  context.textBaseline = 'middle'
  context.fillText(text, x, y + 1)
}

/** A worker was lost: the hatched time, and where another one took over. */
function lossMark(
  context: CanvasRenderingContext2D,
  bars: Bars,
  loss: Loss,
  y: number,
  px: (t: number) => number,
  edge: number,
  room: number,
) {
  if (loss.from > edge) return
  const { colours } = bars
  const [a, b] = [px(loss.from), px(Math.min(loss.to, edge))]
  bar(context, colours, 'lost', a, y + 5, b - a, ROW - 10)
  if (loss.to <= edge) {
    context.fillStyle = colours.failed
    context.fillRect(b - 1, y + 2, 2, ROW - 4)
  }
  context.font = `600 11px ${colours.sans}`
  const whole = loss.to <= edge ? `↯ ${bars.say.takenOver}` : `↯ ${bars.say.kind('lost')}`
  const wide = context.measureText(whole).width + 8
  if (b - a > wide + 8) chip(context, colours, whole, (a + b) / 2, y + ROW / 2, colours.failed)
  else if (b - a > 22) chip(context, colours, loss.to <= edge ? '↯ ↻' : '↯', (a + b) / 2, y + ROW / 2, colours.failed)
  else if (room > 0) {
    context.fillStyle = colours.failed
    context.textAlign = 'center'
    context.textBaseline = 'middle'
    context.fillText('↯', (a + b) / 2, y + ROW / 2 + 1)
  }
}

/** Upright lines at round times, and bands where time is drawn short. */
function grid(
  context: CanvasRenderingContext2D,
  bars: Bars,
  left: number,
  room: number,
  height: number,
  px: (t: number) => number,
) {
  const { colours } = bars
  context.fillStyle = mix(colours.surface, colours.line, 0.6)
  for (const mark of marksOf(bars, room)) context.fillRect(Math.round(px(mark)), AXIS, 1, height)
  for (const piece of bars.scale.pieces) {
    if (!piece.isIdle) continue
    const [a, b] = [px(piece.from), px(piece.to)]
    if (b < left) continue
    context.fillStyle = colours.raised
    context.fillRect(a, AXIS, b - a, height)
  }
}

/** Round times that are in view, not in times that are drawn short. */
export function marksOf(bars: Pick<Bars, 'scale' | 'window'>, room: number): number[] {
  const { scale, window: part } = bars
  const shown = scale.pieces.filter(piece => !piece.isIdle && piece.b > part.a && piece.a < part.b)
  const span = shown.reduce((sum, piece) => {
    const [a, b] = [Math.max(piece.a, part.a), Math.min(piece.b, part.b)]
    return sum + ((b - a) / (piece.b - piece.a)) * (piece.to - piece.from)
  }, 0)
  const step = niceStep(span, room / 90)
  const marks: number[] = []
  for (const piece of shown) {
    const from = Math.max(piece.from, toTime(scale, Math.max(part.a, piece.a)))
    const to = Math.min(piece.to, toTime(scale, Math.min(part.b, piece.b)))
    for (let t = scale.from + Math.ceil((from - scale.from) / step) * step; t <= to && marks.length < 200; t += step)
      marks.push(t)
  }
  return marks
}

function axis(
  context: CanvasRenderingContext2D,
  bars: Bars,
  left: number,
  room: number,
  width: number,
  height: number,
  px: (t: number) => number,
) {
  const { colours, scale } = bars
  context.fillStyle = colours.surface
  context.fillRect(0, 0, width, AXIS)
  context.fillStyle = colours.line
  context.fillRect(0, AXIS - 1, width, 1)
  context.font = `11px ${colours.sans}`
  context.textBaseline = 'middle'
  context.fillStyle = colours.muted
  let free = left - 4
  for (const piece of scale.pieces) {
    if (!piece.isIdle) continue
    const middle = (px(piece.from) + px(piece.to)) / 2
    if (middle < left || middle > width) continue
    context.textAlign = 'center'
    context.fillText(bars.say.idle(bars.say.took(piece.to - piece.from)), middle, AXIS / 2)
  }
  const idle = scale.pieces.filter(piece => piece.isIdle).map(piece => (px(piece.from) + px(piece.to)) / 2)
  for (const mark of marksOf(bars, room)) {
    const x = px(mark)
    const text = mark === scale.from ? '0' : bars.say.took(mark - scale.from)
    const wide = context.measureText(text).width
    const start = mark === scale.from ? x : x - wide / 2
    if (start < free || start + wide > width - 2 || idle.some(middle => Math.abs(middle - x) < wide / 2 + 26)) continue
    context.textAlign = 'left'
    context.fillText(text, start, AXIS / 2)
    free = start + wide + 12
  }
  if (bars.t !== Number.POSITIVE_INFINITY) {
    const x = px(bars.t)
    if (x >= left - 1 && x <= width) {
      context.fillStyle = colours.accent
      context.fillRect(x - 1, 0, 2, height)
      context.beginPath()
      context.moveTo(x - 6, 0)
      context.lineTo(x + 6, 0)
      context.lineTo(x, 8)
      context.fill()
    }
  }
}

function labels(context: CanvasRenderingContext2D, bars: Bars, first: number, last: number, scroll: number) {
  const { colours, run } = bars
  context.textBaseline = 'middle'
  context.textAlign = 'left'
  for (let row = first; row < last; row++) {
    const i = bars.rows[row]!
    const y = AXIS + row * ROW - scroll
    const look = looks[bars.looks[i]!]!
    const x = 10 + Math.min(8, run.depth[i]!) * (bars.label < 140 ? 5 : 12)
    context.globalAlpha = look === 'absent' ? 0.4 : 1
    context.font = `12px ${colours.sans}`
    context.fillStyle = lookColour(colours, look)
    context.fillText(lookGlyph[look], x, y + ROW / 2 + 1)
    context.fillStyle = colours.text
    const number = run.n <= 2_000 ? numberOf(run, i) : 0
    const name = number > 0 ? `${nameOf(run, i)} ${number}` : nameOf(run, i)
    context.save()
    context.beginPath()
    context.rect(0, y, bars.label - 6, ROW)
    context.clip()
    context.fillText(name, x + 16, y + ROW / 2 + 1)
    context.restore()
    context.globalAlpha = 1
  }
}
