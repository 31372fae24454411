import { type RefObject, useEffect, useRef } from 'react'

/** The field that a dialog begins with. The dialog itself takes the focus when it opens, so this comes a frame later. */
export function useFirst<T extends HTMLElement>(): RefObject<T | null> {
  const field = useRef<T>(null)
  useEffect(() => {
    const frame = requestAnimationFrame(() => field.current?.focus())
    return () => cancelAnimationFrame(frame)
  }, [])
  return field
}
