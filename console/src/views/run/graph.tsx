import {
  type KeyboardEvent,
  type PointerEvent,
  type Ref,
  useEffect,
  useEffectEvent,
  useImperativeHandle,
  useRef,
  useState,
} from 'react'
import { draw, firstView, fitAll, type Scene, type View } from './draw'
import { boxOf, hit } from './layout'
import style from './run.module.css'
import { useSurface } from './surface'
import { useWords } from './words'

export interface GraphHandle {
  fit(): void
}

interface Props {
  scene: Scene
  select: (turn: number) => void
  open: (turn: number) => void
  toggle: (turn: number) => void
  handle: Ref<GraphHandle>
  describedBy: string
}

/** The graph. It is drawn when something has changed, at most once per frame. */
export function GraphPane({ scene, select, open, toggle, handle, describedBy }: Props) {
  const w = useWords()
  const box = useRef<HTMLDivElement>(null)
  const canvas = useRef<HTMLCanvasElement>(null)
  const view = useRef<View | null>(null)
  const touched = useRef(false)
  const drag = useRef<{ x: number; y: number; at: View; moved: boolean } | null>(null)
  const [over, setOver] = useState(-1)
  const [isReady, setReady] = useState(false)

  const { size, ask } = useSurface(
    box,
    canvas,
    (context, { width, height, ratio }) => {
      if (view.current === null || !touched.current) view.current = firstView(scene.plan, width, height)
      draw(context, { ...scene, over }, view.current, width, height, ratio)
      if (!isReady) {
        performance.mark('waybill.graph.ready')
        setReady(true)
      }
    },
    (before, after) => {
      if (!view.current || before.width === 0) return
      view.current = {
        ...view.current,
        x: view.current.x + (after.width - before.width) / 2,
        y: view.current.y + (after.height - before.height) / 2,
      }
    },
  )

  const zoomAt = (x: number, y: number, by: number) => {
    const old = view.current
    if (!old) return
    const least = Math.min(0.02, fitAll(scene.plan, size.current.width, size.current.height).zoom)
    const zoom = Math.min(4, Math.max(least, old.zoom * by))
    touched.current = true
    view.current = { zoom, x: x - ((x - old.x) * zoom) / old.zoom, y: y - ((y - old.y) * zoom) / old.zoom }
    ask()
  }
  const wheel = useEffectEvent((event: WheelEvent) => {
    event.preventDefault()
    if (!view.current) return
    const rect = canvas.current!.getBoundingClientRect()
    const unit = event.deltaMode === 1 ? 16 : 1
    if (event.ctrlKey || event.metaKey) {
      zoomAt(event.clientX - rect.left, event.clientY - rect.top, Math.exp(-event.deltaY * unit * 0.01))
      return
    }
    touched.current = true
    const [dx, dy] = event.shiftKey ? [event.deltaY, 0] : [event.deltaX, event.deltaY]
    view.current = { ...view.current, x: view.current.x - dx * unit, y: view.current.y - dy * unit }
    ask()
  })
  useEffect(() => {
    const surface = canvas.current
    const listen = (event: WheelEvent) => wheel(event)
    surface?.addEventListener('wheel', listen, { passive: false })
    return () => surface?.removeEventListener('wheel', listen)
  }, [])

  const turnAt = (event: PointerEvent | React.MouseEvent): number => {
    const rect = canvas.current!.getBoundingClientRect()
    const at = view.current
    if (!at) return -1
    return hit(
      scene.plan,
      scene.run,
      (event.clientX - rect.left - at.x) / at.zoom,
      (event.clientY - rect.top - at.y) / at.zoom,
    )
  }
  const down = (event: PointerEvent<HTMLCanvasElement>) => {
    if (event.button !== 0 || !view.current) return
    event.currentTarget.setPointerCapture(event.pointerId)
    drag.current = { x: event.clientX, y: event.clientY, at: view.current, moved: false }
  }
  const move = (event: PointerEvent<HTMLCanvasElement>) => {
    const from = drag.current
    if (!from) {
      const turn = turnAt(event)
      if (turn !== over) setOver(turn)
      return
    }
    const [dx, dy] = [event.clientX - from.x, event.clientY - from.y]
    if (!from.moved && Math.hypot(dx, dy) < 4) return
    from.moved = true
    touched.current = true
    view.current = { ...from.at, x: from.at.x + dx, y: from.at.y + dy }
    ask()
  }
  const up = (event: PointerEvent<HTMLCanvasElement>) => {
    const from = drag.current
    drag.current = null
    if (from && !from.moved) select(turnAt(event))
  }
  const showAll = () => {
    view.current = fitAll(scene.plan, size.current.width, size.current.height)
    touched.current = true
    ask()
  }
  useImperativeHandle(handle, () => ({ fit: showAll }))

  // A turn that was selected elsewhere is brought into view.
  const { selected, plan } = scene
  const bring = useEffectEvent(() => {
    if (selected < 0 || !view.current) return
    const found = boxOf(plan, scene.run, selected)
    if (!found) return
    const { zoom, x, y } = view.current
    const { width, height } = size.current
    const [left, top] = [found.x * zoom + x, found.y * zoom + y]
    const [right, bottom] = [left + found.w * zoom, top + found.h * zoom]
    if (left >= 0 && top >= 0 && right <= width && bottom <= height) return
    touched.current = true
    view.current = {
      zoom,
      x: x + (left < 0 || right > width ? width / 2 - (left + right) / 2 : 0),
      y: y + (top < 0 || bottom > height ? height / 2 - (top + bottom) / 2 : 0),
    }
    ask()
  })
  // biome-ignore lint/correctness/useExhaustiveDependencies: a new selection, or new places
  useEffect(() => bring(), [selected, plan])

  const press = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && selected >= 0) {
      event.preventDefault()
      open(selected)
    }
  }
  const middle = () => [size.current.width / 2, size.current.height / 2] as const
  return (
    <div ref={box} className={style.graph} data-ready={isReady} data-over={over >= 0}>
      <div
        className={style.focus}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: the keys work here
        tabIndex={0}
        role="group"
        aria-label={w.graphLabel}
        aria-describedby={describedBy}
        onKeyDown={press}
      >
        <canvas
          ref={canvas}
          onPointerDown={down}
          onPointerMove={move}
          onPointerUp={up}
          onPointerCancel={() => {
            drag.current = null
          }}
          onPointerLeave={() => setOver(-1)}
          onDoubleClick={event => {
            const turn = turnAt(event)
            if (turn >= 0) toggle(turn)
          }}
        />
      </div>
      <div className={style.tools}>
        <button
          type="button"
          title={w.foldSays}
          disabled={selected < 0}
          onClick={() => selected >= 0 && toggle(selected)}
        >
          {w.fold}
        </button>
        <button type="button" title={w.fitSays} onClick={showAll}>
          {w.fit}
        </button>
        <button type="button" aria-label={w.zoomOut} title={w.zoomHelp} onClick={() => zoomAt(...middle(), 1 / 1.3)}>
          −
        </button>
        <button type="button" aria-label={w.zoomIn} title={w.zoomHelp} onClick={() => zoomAt(...middle(), 1.3)}>
          +
        </button>
      </div>
    </div>
  )
}
