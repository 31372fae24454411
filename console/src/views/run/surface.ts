import { type RefObject, useEffect, useEffectEvent, useLayoutEffect, useRef } from 'react'

/** The size of a surface in CSS pixels, and how many pixels of the screen each has. */
export interface Size {
  width: number
  height: number
  ratio: number
}

/**
 * Keeps a canvas as large as its box, and paints it when something has changed, at most once per frame. `resized` hears of a new size before it is
 * painted. Returns the size, and what asks for another painting.
 */
export function useSurface(
  box: RefObject<HTMLElement | null>,
  canvas: RefObject<HTMLCanvasElement | null>,
  draw: (context: CanvasRenderingContext2D, size: Size) => void,
  resized: (before: Size, after: Size) => void = () => {},
) {
  const size = useRef<Size>({ width: 0, height: 0, ratio: 1 })
  const frame = useRef(0)
  const paint = useEffectEvent(() => {
    frame.current = 0
    const context = canvas.current?.getContext('2d', { alpha: false })
    if (context && size.current.width > 0) draw(context, size.current)
  })
  const tell = useEffectEvent((before: Size, after: Size) => resized(before, after))
  const ask = () => {
    if (frame.current === 0) frame.current = requestAnimationFrame(() => paint())
  }
  useEffect(() => {
    ask()
  })
  useEffect(
    () => () => {
      cancelAnimationFrame(frame.current)
      frame.current = 0
    },
    [],
  )
  useLayoutEffect(() => {
    const element = box.current
    const surface = canvas.current
    if (!element || !surface) return
    const measure = () => {
      const [width, height, ratio] = [element.clientWidth, element.clientHeight, window.devicePixelRatio || 1]
      const before = size.current
      if (before.width === width && before.height === height && before.ratio === ratio) return
      size.current = { width, height, ratio }
      tell(before, size.current)
      surface.width = Math.round(width * ratio)
      surface.height = Math.round(height * ratio)
      surface.style.width = `${width}px`
      surface.style.height = `${height}px`
      cancelAnimationFrame(frame.current)
      paint()
    }
    measure()
    const watch = new ResizeObserver(measure)
    watch.observe(element)
    return () => watch.disconnect()
  }, [box, canvas])
  return { size, ask }
}
