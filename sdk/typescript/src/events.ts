/** Watching: server-sent events that go on where they were cut off. */
import type { Waybill } from './client.ts'
import { WaybillError } from './error.ts'
import type { Schemas } from './http.ts'
import { backoff, bound, pause } from './wait.ts'

/** What happens: `task` is the end of a turn. `id` is the cursor: pass it as `after` to go on from there. */
export type Event =
  | (Schemas['TurnEvent'] & { kind: Schemas['EventKind']; id: string })
  | (Schemas['TokenEvent'] & { kind: 'token'; id: null })

export interface Watching {
  /** Where to go on: the `id` of an event. If omitted, from the beginning for a turn or a tree, from now on for a project. */
  after?: string | undefined
  signal?: AbortSignal | undefined
}

/** What to watch, and when it is over. */
export interface View {
  /** A turn by itself, or else the project, or the tree of `root`. */
  turn?: string
  root?: string
  kinds?: Schemas['EventKind'][]
  tokens?: string[]
}

const KINDS: ReadonlySet<string> = new Set(['state', 'step', 'request', 'task', 'token'])
/** Seconds of silence after which a connection counts as dead: the server writes at least every 15. */
const SILENCE = 60
/** Seconds of silence after which a tree that has ended has no more to say. */
const SETTLED = 10
/** How often nothing must come after the end of a turn until there is nothing: a server that is about to end sends nothing either. */
const EMPTY = 3
const silent = new Error('the stream is silent')
/** Events that are remembered, because the server may send one again after an interruption. */
const REMEMBERED = 1_000

/** Yields events until the turn ends. A connection that is cut is opened again, and no event but tokens is missed. */
export async function* follow(waybill: Waybill, view: View, { after, signal }: Watching): AsyncGenerator<Event, void, undefined> {
  const seen = new Set<string>()
  const ends = view.turn ?? view.root
  let empty = 0
  for (let failures = 0, isFirst = after === undefined; ; failures += 1, isFirst = false) {
    const isOver = ends !== undefined && !isFirst && (await waybill.call('show_turn', { path: { turn: ends }, signal })).turn.status !== 'open'
    const connection = bound([signal])
    const settles = isOver && view.root !== undefined
    let last = 0
    try {
      const begun = Date.now()
      for await (const message of messages(await open(waybill, view, after, connection.signal), settles ? SETTLED : SILENCE)) {
        failures = 0
        if (message.id !== '') after = message.id
        if (message.data === '' || !KINDS.has(message.event)) {
          if (settles && Date.now() - Math.max(begun, last) > SETTLED * 1000) return
          continue
        }
        last = Date.now()
        const event = { ...JSON.parse(message.data), kind: message.event, id: message.event === 'token' ? null : message.id } as Event
        if (event.kind !== 'token') {
          if (seen.has(event.event_id)) continue
          seen.add(event.event_id)
          if (seen.size > REMEMBERED) seen.delete(seen.values().next().value!)
        }
        yield event
        if (event.kind === 'task' && event.agent_turn_id === ends) return
      }
      // It was over before we asked, and there is nothing more. The stream of a tree does not end by itself.
      if (isOver && !settles && last === 0 && (empty += 1) === EMPTY) return
    } catch (error) {
      signal?.throwIfAborted()
      // A further attempt would not help.
      if (error instanceof WaybillError || error instanceof SyntaxError) throw error
      if (settles && error === silent) return
    } finally {
      connection.free()
      connection.abort()
    }
    await pause(backoff(failures), signal)
  }
}

async function open(waybill: Waybill, { turn, root, kinds, tokens }: View, after: string | undefined, signal: AbortSignal) {
  const from = after === undefined ? {} : { after: Number(after) }
  if (turn !== undefined) return waybill.call('watch_turn', { path: { turn }, query: { ...from, tokens: tokens !== undefined }, signal })
  const query = { ...(root && { root, after: 0 }), ...from, ...(kinds && { kinds }), ...(tokens && { tokens }) }
  return waybill.call('watch_project', { query, signal })
}

/** Reads server-sent events (WHATWG). Throws `silent` if nothing comes for some seconds. */
async function* messages(body: ReadableStream<Uint8Array>, patience: number) {
  const reader = body.getReader()
  const decoder = new TextDecoder()
  let rest = ''
  let id = ''
  let event = ''
  let data: string[] = []
  let isSilent = false
  const hush = () => {
    isSilent = true
    reader.cancel().catch(() => {})
  }
  try {
    while (true) {
      const timer = setTimeout(hush, patience * 1000)
      const { done, value } = await reader.read().finally(() => clearTimeout(timer))
      if (isSilent) throw silent
      if (done) return
      // A carriage return at the end may be half of a line's end.
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/)
      rest = lines.pop()!
      for (const line of lines) {
        if (line === '') {
          if (id !== '' || data.length > 0) yield { id, event: event || 'message', data: data.join('\n') }
          event = ''
          data = []
          continue
        }
        const [, field, text = ''] = /^([^:]*)(?:: ?(.*))?$/s.exec(line)!
        if (field === 'data') data.push(text)
        else if (field === 'event') event = text
        else if (field === 'id') id = text
      }
    }
  } finally {
    reader.cancel().catch(() => {})
  }
}
