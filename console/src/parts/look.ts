/** How a turn is shown, in one word and with one sign. */
import type { Schemas } from '../api'

/** How a turn is: how it ended, or what it does. */
export type Look =
  | 'running'
  | 'waiting'
  | 'ready'
  | 'queued'
  | 'asks'
  | 'success'
  | 'failed'
  | 'canceled'
  | 'timeout'
  | 'recorded'

export const glyphs: Record<Look, string> = {
  running: '▶',
  waiting: '◔',
  ready: '○',
  queued: '≡',
  asks: '✉',
  success: '✓',
  failed: '✗',
  canceled: '■',
  timeout: '◷',
  recorded: '◆',
}

/** What a turn is at, in one word: how it ended, or what it does. */
export function stateOf(turn: Pick<Schemas['Summary'], 'status' | 'waiting_for'>): Look {
  if (turn.status !== 'open') return turn.status
  const kind = turn.waiting_for?.kind
  if (kind === undefined) return 'running'
  if (kind === 'person') return 'asks'
  if (kind === 'worker') return 'ready'
  return kind === 'queue' ? 'queued' : 'waiting'
}
