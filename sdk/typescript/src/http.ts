/** One request: its address, its retries, and its types. */
import { WaybillError } from './error.ts'
import { operations } from './operations.ts'
import type { components, operations as Described } from './schema.ts'
import { backoff, pause, timer } from './wait.ts'

export type Schemas = components['schemas']
export type Operation = keyof Described

type Content<T> = T extends { content: infer C } ? C : never
type Typed<C> = C extends { 'application/json': infer T }
  ? T
  : C extends { 'application/octet-stream': unknown }
    ? Uint8Array
    : C extends { 'text/event-stream': unknown }
      ? ReadableStream<Uint8Array>
      : undefined
type Sent<C> = C extends { 'application/json': infer T } ? T : C extends { 'text/plain': string } ? string : string | Uint8Array
type Part<K extends string, T> = [T] extends [never] ? unknown : Record<never, never> extends T ? { [k in K]?: T } : { [k in K]: T }

/** What an operation answers. */
export type Answer<N extends Operation> = Described[N]['responses'] extends { 200: infer R } ? Typed<Content<R>> : undefined

export interface Settings {
  /** Aborts the request, and its retries. */
  signal?: AbortSignal | undefined
  /** Idempotency key. If omitted, the client makes one where the operation takes one, so that its retries write once. */
  key?: string | undefined
  /** Seconds to wait for one answer. If omitted, 60. */
  timeout?: number | undefined
}

/** What to send. The project is filled in. */
export type Request<N extends Operation> = Settings &
  Part<'path', Omit<NonNullable<Described[N]['parameters']['path']>, 'project'>> &
  Part<'query', NonNullable<Described[N]['parameters']['query']>> &
  ([NonNullable<Described[N]['requestBody']>] extends [never] ? unknown : { body: Sent<Content<NonNullable<Described[N]['requestBody']>>> })

export type Arguments<N extends Operation> = Record<never, never> extends Request<N> ? [Request<N>?] : [Request<N>]

export interface Connection {
  url: string
  key: string | undefined
  project: string
  /** Seconds for which a request is retried. */
  patience: number
  fetch: typeof fetch
}

/** Requests without an `Idempotency-Key` that may be sent again: they only read, or carry ids by which they happen once. */
const REPEATABLE: ReadonlySet<string> = new Set<Operation>([
  'show_boxes', 'show_cards', 'search_knowledge', 'check_handoff', 'verify_context', 'start_turns', 'report_call',
  'compose_turn', 'answer_turn', 'write_step', 'finish_turn', 'keep_lease', 'leave',
])

interface Loose extends Settings {
  path?: Record<string, unknown>
  query?: Record<string, unknown>
  body?: unknown
}

/** Sends a request, again if that may help and does no harm. Throws a `WaybillError` for every answer that is a problem. */
export async function send(to: Connection, name: Operation, request: Loose): Promise<Response> {
  const { method, path, once, sends, lists } = operations[name]
  const values: Record<string, unknown> = { project: to.project, ...request.path }
  const filled = path.replace(/\{(\w+)\}/g, (_, part) => {
    const value = String(values[part] ?? '')
    // As a part of a path, these would lead to another operation.
    if (['', '.', '..'].includes(value)) throw new WaybillError(name, 'invalid', `\`${part}\` must not be '${value}'.`)
    return encodeURIComponent(value)
  })
  const address = new URL(to.url.replace(/\/+$/, '') + filled)
  for (const [part, value] of Object.entries(request.query ?? {}))
    for (const one of Array.isArray(value) && !lists.includes(part) ? value : [value])
      if (one !== undefined && one !== null) address.searchParams.append(part, String(one))
  const headers = new Headers()
  if (to.key) headers.set('authorization', `Bearer ${to.key}`)
  const key = request.key ?? crypto.randomUUID()
  if (!/^[!-~]{1,200}$/.test(key)) throw new WaybillError(name, 'invalid', '`key` must have 1 to 200 visible ASCII characters, without spaces.')
  if (once) headers.set('idempotency-key', key)
  const body = request.body === undefined ? null : sends === 'application/json' ? JSON.stringify(request.body) : (request.body as BodyInit)
  if (body !== null && sends) headers.set('content-type', sends)
  const repeatable = once || REPEATABLE.has(name) || (method !== 'POST' && method !== 'PATCH')

  const until = Date.now() + to.patience * 1000
  for (let attempt = 0; ; attempt += 1) {
    let problem: WaybillError
    try {
      return await ask(to, name, address, { method, headers, body, redirect: 'manual' }, request)
    } catch (error) {
      if (!(error instanceof WaybillError)) throw error
      problem = error
    }
    const { status, retryAfter } = problem
    // 429 is said before anything is done. After other failures a request may have been carried out.
    const helps = status === 429 || (repeatable && (status === 0 || status === 408 || (status >= 500 && status !== 501)))
    const seconds = Math.max(retryAfter ?? 0, backoff(attempt))
    if (!helps || Date.now() + seconds * 1000 > until) throw problem
    await pause(seconds, request.signal)
  }
}

/** Asks once, and reads the whole answer unless it is a stream. */
async function ask(to: Connection, name: Operation, address: URL, init: RequestInit, { signal, timeout = 60 }: Settings): Promise<Response> {
  signal?.throwIfAborted()
  const end = new AbortController()
  const abort = () => end.abort(signal?.reason)
  signal?.addEventListener('abort', abort, { once: true })
  const late = setTimeout(() => end.abort(new Error(`no answer within ${timeout} s`)), timer(timeout))
  const { answers } = operations[name]
  let isStream = false
  try {
    const response = await to.fetch(address, { ...init, signal: end.signal })
    const type = response.headers.get('content-type') ?? ''
    const isExpected = answers === null ? response.status < 400 : response.ok && (answers === 'application/octet-stream' || type.startsWith(answers))
    isStream = isExpected && answers === 'text/event-stream'
    if (isStream) return response
    const bytes = await response.arrayBuffer()
    if (isExpected) return new Response(bytes.byteLength > 0 ? bytes : null, response)
    throw problemOf(name, response, new TextDecoder().decode(bytes))
  } catch (error) {
    if (error instanceof WaybillError) throw error
    signal?.throwIfAborted()
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
    const { message, code } = cause as { message?: string; code?: string }
    throw new WaybillError(name, 'unreachable', `${address.origin} did not answer: ${message || code || cause}.`, { cause: error })
  } finally {
    clearTimeout(late)
    // It ends a stream too.
    if (!isStream) signal?.removeEventListener('abort', abort)
  }
}

function problemOf(name: Operation, response: Response, text: string): WaybillError {
  const { status } = response
  try {
    const said = JSON.parse(text) as Partial<Schemas['Problem']>
    if (typeof said.code === 'string')
      return new WaybillError(name, said.code, said.detail ?? '', { status, retryAfter: said.retry_after ?? null })
  } catch {}
  return new WaybillError(name, 'unexpected', `The answer was ${status} ${response.statusText}.`, { status })
}

/** Returns what the answer says, in the type that the operation answers. */
export async function read(name: Operation, response: Response): Promise<unknown> {
  switch (operations[name].answers) {
    case 'application/json':
      return response.json()
    case 'text/event-stream':
      return response.body
    case null:
      return undefined
    default:
      return new Uint8Array(await response.arrayBuffer())
  }
}
