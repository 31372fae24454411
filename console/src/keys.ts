/** Keys: one letter, or two in a row ("g r"). Nothing happens while the user types. */
import { useEffect, useEffectEvent } from 'react'

export interface Help {
  keys: string
  what: string
}

const shown = new Set<Help[]>()
/** What the keys of all that is on the screen do, for the help. */
export const helpNow = (): Help[] => [...shown].flat()

let before = ''
let at = 0
/** The key and the one before it, if that was less than a second ago. */
let both = ''

export function useKeys(keys: Record<string, (event: KeyboardEvent) => void>, help: Help[] = []) {
  const pressed = useEffectEvent((event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTyping(event.target)) return
    // After `g` a second key is awaited, which another part of the page may know.
    const call = keys[both] ?? (both.startsWith('g ') ? undefined : keys[event.key])
    if (call) {
      event.preventDefault()
      call(event)
    }
  })
  useEffect(() => {
    const listen = (event: KeyboardEvent) => pressed(event)
    window.addEventListener('keydown', listen)
    return () => window.removeEventListener('keydown', listen)
  }, [])
  const text = JSON.stringify(help)
  useEffect(() => {
    const own: Help[] = JSON.parse(text)
    shown.add(own)
    return () => {
      shown.delete(own)
    }
  }, [text])
}

/** Called once, by the frame: remembers the first of two keys. */
export function rememberKeys() {
  const listen = (event: KeyboardEvent) => {
    both = Date.now() - at < 1_000 ? `${before} ${event.key}` : ''
    before = event.key
    at = Date.now()
  }
  window.addEventListener('keydown', listen, true)
  return () => window.removeEventListener('keydown', listen, true)
}

function isTyping(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false
  if (document.querySelector('dialog[open]')) return true
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
}
