import { type KeyboardEvent, type PointerEvent, useEffect, useEffectEvent, useRef, useState } from 'react'
import { AXIS, type Bars, bar, drawBars, glyphOf, ROW, type Window } from './bars'
import type { Segment } from './model'
import style from './run.module.css'
import { toShare, toTime } from './scale'
import { useSurface } from './surface'
import { type Colours, useColours } from './theme'
import { useWords } from './words'

type Given = Omit<Bars, 'window' | 'over' | 'label' | 'colours'>

interface Props {
  bars: Given
  select: (turn: number) => void
  open: (turn: number) => void
  seek: (t: number) => void
  isWhole: boolean
  describedBy: string
}

/** The timeline: a row for each turn. Rows are drawn only where they are seen. */
export function TimelinePane({ bars, select, open, seek, isWhole, describedBy }: Props) {
  const w = useWords()
  const colours = useColours()
  const box = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const [part, setPart] = useState<Window>({ a: 0, b: 1 })
  const [over, setOver] = useState(-1)
  const drag = useRef<{ x: number; part: Window; isSeek: boolean; moved: boolean } | null>(null)
  const { size, ask } = useSurface(box, canvas, (context, { width, height, ratio }) => {
    const full: Bars = { ...bars, window: part, over, colours, label: label() }
    drawBars(context, full, width, height, box.current?.scrollTop ?? 0, ratio)
  })
  const label = () => Math.max(112, Math.min(200, size.current.width * 0.26))

  const shareAt = (clientX: number): number => {
    const rect = canvas.current!.getBoundingClientRect()
    const room = Math.max(10, size.current.width - label() - 20)
    return part.a + ((clientX - rect.left - label()) / room) * (part.b - part.a)
  }
  const zoomAt = (share: number, by: number) => {
    const wide = Math.min(1, Math.max(0.0005, (part.b - part.a) * by))
    const left = Math.min(1 - wide, Math.max(0, share - ((share - part.a) / (part.b - part.a)) * wide))
    setPart({ a: left, b: left + wide })
  }
  const wheel = useEffectEvent((event: WheelEvent) => {
    const rect = canvas.current!.getBoundingClientRect()
    const element = box.current!
    const isScrollable = element.scrollHeight > element.clientHeight + 1
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)
    if (isSideways) {
      event.preventDefault()
      const by = ((event.deltaX || event.deltaY) / Math.max(10, size.current.width)) * (part.b - part.a)
      const left = Math.min(1 - (part.b - part.a), Math.max(0, part.a + by))
      setPart({ a: left, b: left + part.b - part.a })
    } else if (event.ctrlKey || event.metaKey || !isScrollable || event.clientY - rect.top < AXIS) {
      event.preventDefault()
      zoomAt(shareAt(event.clientX), Math.exp(event.deltaY * (event.ctrlKey ? 0.01 : 0.002)))
    }
  })
  useEffect(() => {
    const element = box.current
    const listen = (event: WheelEvent) => wheel(event)
    element?.addEventListener('wheel', listen, { passive: false })
    return () => element?.removeEventListener('wheel', listen)
  }, [])

  const rowAt = (clientY: number): number => {
    const rect = canvas.current!.getBoundingClientRect()
    const row = Math.floor((clientY - rect.top - AXIS + (box.current?.scrollTop ?? 0)) / ROW)
    return clientY - rect.top < AXIS ? -1 : (bars.rows[row] ?? -1)
  }
  const down = (event: PointerEvent<HTMLCanvasElement>) => {
    if (event.button !== 0) return
    event.currentTarget.setPointerCapture(event.pointerId)
    const isSeek = event.clientY - event.currentTarget.getBoundingClientRect().top < AXIS
    drag.current = { x: event.clientX, part, isSeek, moved: false }
    if (isSeek) seek(toTime(bars.scale, shareAt(event.clientX)))
  }
  const move = (event: PointerEvent<HTMLCanvasElement>) => {
    const from = drag.current
    if (!from) {
      const turn = rowAt(event.clientY)
      if (turn !== over) setOver(turn)
      event.currentTarget.title = turn < 0 ? '' : says(turn, toTime(bars.scale, shareAt(event.clientX)))
      return
    }
    if (from.isSeek) return seek(toTime(bars.scale, shareAt(event.clientX)))
    if (!from.moved && Math.abs(event.clientX - from.x) < 4) return
    from.moved = true
    const wide = from.part.b - from.part.a
    const by = ((from.x - event.clientX) / Math.max(10, size.current.width - label())) * wide
    const left = Math.min(1 - wide, Math.max(0, from.part.a + by))
    setPart({ a: left, b: left + wide })
  }
  const up = (event: PointerEvent<HTMLCanvasElement>) => {
    const from = drag.current
    drag.current = null
    if (from && !from.moved && !from.isSeek) select(rowAt(event.clientY))
  }
  /** What a turn did at a time. */
  const says = (turn: number, t: number): string => {
    const found: string[] = []
    for (const loss of bars.losses.get(turn) ?? []) {
      if (loss.from <= t && t <= loss.to) found.push(bars.say.takenOver)
    }
    for (let k = bars.times.start[turn]!; k < bars.times.start[turn + 1]!; k++) {
      const one = bars.times.at[k]!
      const end = one.to_ms ?? bars.now
      if (one.from_ms <= t && t <= end) {
        found.push(
          [bars.say.kind(one.kind), bars.say.took(end - one.from_ms), one.status ?? ''].filter(Boolean).join(' · '),
        )
      }
    }
    return found.join('\n')
  }

  const { selected, rows } = bars
  // biome-ignore lint/correctness/useExhaustiveDependencies: only a new selection scrolls
  useEffect(() => {
    const element = box.current
    const row = selected < 0 ? -1 : rows.indexOf(selected)
    if (!element || row < 0) return
    const top = row * ROW
    const room = element.clientHeight - AXIS
    if (top < element.scrollTop) element.scrollTop = top
    else if (top + ROW > element.scrollTop + room) element.scrollTop = top + ROW - room
  }, [selected])

  const press = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault()
      const row = rows.indexOf(selected)
      const next = rows[row < 0 ? 0 : row + (event.key === 'ArrowDown' ? 1 : -1)]
      if (next !== undefined) select(next)
    } else if (event.key === 'Enter' && selected >= 0) {
      event.preventDefault()
      open(selected)
    }
  }
  const playhead = () => (bars.t === Number.POSITIVE_INFINITY ? (part.a + part.b) / 2 : toShare(bars.scale, bars.t))
  return (
    <div className={style.timeline} data-whole={isWhole}>
      <div
        ref={box}
        className={style.rows}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys work here, and it scrolls
        tabIndex={0}
        role="group"
        aria-label={w.timelineLabel}
        aria-describedby={describedBy}
        onKeyDown={press}
        onScroll={ask}
      >
        <canvas
          ref={canvas}
          className={style.strip}
          onPointerDown={down}
          onPointerMove={move}
          onPointerUp={up}
          onPointerLeave={() => setOver(-1)}
        />
        <div style={{ height: Math.max(0, rows.length * ROW + AXIS - 1) }} />
      </div>
      <div className={style.legend}>
        <Legend colours={colours} />
        {bars.scale.pieces.some(piece => piece.isIdle) && <span className="muted">‹ › {w.idleSays}</span>}
        <span className={style.push} />
        <span className={style.pair}>
          <button
            type="button"
            aria-label={w.zoomOut}
            onClick={() => zoomAt(playhead(), 1.5)}
            disabled={part.b - part.a >= 1}
          >
            −
          </button>
          <button type="button" aria-label={w.zoomIn} onClick={() => zoomAt(playhead(), 1 / 1.5)}>
            +
          </button>
        </span>
      </div>
    </div>
  )
}

const kinds: Segment['kind'][] = ['queued', 'model', 'tool', 'child', 'person', 'lost']

function Legend({ colours }: { colours: Colours }) {
  const w = useWords()
  return (
    <ul aria-label={w.legend}>
      {kinds.map(kind => (
        <li key={kind}>
          <Swatch kind={kind} colours={colours} />
          <span aria-hidden="true">{glyphOf[kind]}</span> {w.kinds[kind]}
        </li>
      ))}
    </ul>
  )
}

function Swatch({ kind, colours }: { kind: Segment['kind']; colours: Colours }) {
  const canvas = useRef<HTMLCanvasElement>(null)
  useEffect(() => {
    const surface = canvas.current
    const context = surface?.getContext('2d')
    if (!surface || !context) return
    const ratio = window.devicePixelRatio || 1
    surface.width = 22 * ratio
    surface.height = 12 * ratio
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    bar(context, colours, kind, 0, 0, 22, 12)
  }, [kind, colours])
  return <canvas ref={canvas} className={style.swatch} />
}
