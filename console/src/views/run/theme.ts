/** Colours of the page for a canvas, read once for each theme. */
import { useSyncExternalStore } from 'react'
import type { RunLook } from './playhead'

const names = [
  'bg',
  'surface',
  'raised',
  'text',
  'muted',
  'line',
  'accent',
  'selected',
  'running',
  'waiting',
  'asks',
  'success',
  'failed',
  'timeout',
  'canceled',
  'outside',
  'layer-tools',
] as const
export type Colours = Record<(typeof names)[number], string> & { sans: string; mono: string }

let known: Colours | null = null
const listeners = new Set<() => void>()

function read(): Colours {
  // A canvas says every colour as `#rrggbb`, however the style sheet writes it.
  const pen = document.createElement('canvas').getContext('2d')
  const plain = (colour: string): string => {
    if (!pen) return '#888888'
    pen.fillStyle = '#888888'
    pen.fillStyle = colour
    return String(pen.fillStyle)
  }
  const style = getComputedStyle(document.documentElement)
  const found = Object.fromEntries(names.map(name => [name, plain(style.getPropertyValue(`--${name}`).trim())]))
  const sans = style.getPropertyValue('--sans').trim() || 'sans-serif'
  const mono = style.getPropertyValue('--mono').trim() || 'monospace'
  return { ...(found as Record<(typeof names)[number], string>), sans, mono }
}

function watch(listener: () => void) {
  const changed = () => {
    known = null
    for (const one of listeners) one()
  }
  listeners.add(listener)
  const root = new MutationObserver(changed)
  root.observe(document.documentElement, { attributes: true, attributeFilter: ['data-theme', 'class'] })
  return () => {
    listeners.delete(listener)
    root.disconnect()
  }
}

const now = () => {
  known ??= read()
  return known
}

export const useColours = () => useSyncExternalStore(watch, now)

export function lookColour(colours: Colours, look: RunLook): string {
  if (look === 'absent') return colours.line
  if (look === 'queued' || look === 'open') return colours.muted
  if (look === 'lost') return colours.failed
  return colours[look]
}

export const lookGlyph: Record<RunLook, string> = {
  absent: '·',
  queued: '≡',
  running: '▶',
  waiting: '◔',
  asks: '✉',
  lost: '↯',
  success: '✓',
  failed: '✗',
  canceled: '■',
  timeout: '◷',
  open: '○',
}

/** A colour between two, both as `#rrggbb`. */
export function mix(a: string, b: string, share: number): string {
  const part = (colour: string, at: number) => Number.parseInt(colour.slice(at, at + 2), 16)
  const one = (at: number) =>
    Math.round(part(a, at) + (part(b, at) - part(a, at)) * share)
      .toString(16)
      .padStart(2, '0')
  return `#${one(1)}${one(3)}${one(5)}`
}
