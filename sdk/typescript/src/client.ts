/** The client. */
import { type Event, follow, type Watching } from './events.ts'
import { type Answer, type Arguments, type Connection, type Operation, type Request, read, type Schemas, type Settings, send } from './http.ts'
import { type ServeOptions, serve } from './serve.ts'
import type { Tool } from './tool.ts'
import { Session, Turn } from './turn.ts'

export interface Options {
  /** Address of the server. If omitted, WAYBILL_API_URL, or http://127.0.0.1:7070. */
  url?: string | undefined
  /** API key. If omitted, WAYBILL_API_KEY. `waybill dev` needs none. */
  key?: string | undefined
  /** Slug or id of the project. If omitted, WAYBILL_PROJECT, or `demo`. */
  project?: string | undefined
  /** Seconds for which a request is retried while that may help. If omitted, 60. */
  patience?: number | undefined
  /** What sends requests. If omitted, the `fetch` of the runtime. */
  fetch?: typeof fetch | undefined
}

export interface RunOptions extends Settings {
  /** JSON Schema that the result must fit. */
  resultSchema?: Record<string, unknown> | undefined
  labels?: Record<string, string> | undefined
  limits?: Schemas['Limits'] | undefined
  /** Session that the turn is part of. */
  session?: string | undefined
  /** Existing agent that works. If omitted, one is made for the turn. */
  agent?: string | undefined
  onBehalfOf?: string | undefined
  /** Whether the instruction came from outside your system. */
  external?: boolean | undefined
  /** Further fields of the request, as the API names them. */
  start?: Partial<Schemas['Start']> | undefined
}

/** Operations that answer in pages, and what is on them. */
type Paged = { [N in Operation]: Answer<N> extends { items: unknown[] } ? (N extends 'verify_context' ? never : N) : never }[Operation]
type Item<N extends Operation> = Answer<N> extends { items: (infer I)[] } ? I : never

const environment: Record<string, string | undefined> =
  (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {}

export class Waybill {
  readonly url: string
  readonly project: string
  private readonly connection: Connection

  constructor(options: Options = {}) {
    this.connection = {
      url: options.url ?? (environment.WAYBILL_API_URL || 'http://127.0.0.1:7070'),
      key: (options.key ?? environment.WAYBILL_API_KEY)?.trim(),
      project: options.project ?? (environment.WAYBILL_PROJECT || 'demo'),
      patience: options.patience ?? 60,
      fetch: options.fetch ?? ((input, init) => fetch(input, init)),
    }
    // Neither error repeats what it is about: both may be secrets.
    const { protocol, username, password } = URL.canParse(this.connection.url) ? new URL(this.connection.url) : { protocol: '' }
    if (!/^https?:$/.test(protocol) || username || password) throw new TypeError('`url` must be like http://127.0.0.1:7070, without a user and a password')
    if (/[^!-~]/.test(this.connection.key ?? '')) throw new TypeError('`key` must be an API key: it has characters that no key has')
    this.url = this.connection.url
    this.project = this.connection.project
    // A key is not printed with the object.
    Object.defineProperty(this, 'connection', { enumerable: false })
  }

  /** Returns a client that differs in some options, such as the project. What is `undefined` stays as it is. */
  with(options: Options): Waybill {
    return new Waybill({ ...this.connection, ...Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) })
  }

  /** Calls any operation of the API by its name in the OpenAPI document, and returns what it answers. */
  async call<N extends Operation>(name: N, ...[request]: Arguments<N>): Promise<Answer<N>> {
    return (await read(name, await send(this.connection, name, request ?? {}))) as Answer<N>
  }

  /** Like `call`, but returns the answer as it came: its bytes and its headers. */
  send<N extends Operation>(name: N, ...[request]: Arguments<N>): Promise<Response> {
    return send(this.connection, name, request ?? {})
  }

  /** Yields the entries of a list, page by page. */
  async *pages<N extends Paged>(name: N, ...[request]: Arguments<N>): AsyncGenerator<Item<N>, void, undefined> {
    for (let after: unknown; after !== null; ) {
      const { query, ...rest } = (request ?? {}) as { query?: Record<string, unknown> }
      const asked = { ...rest, query: after === undefined ? query : { ...query, after } } as unknown as Request<N>
      const page = (await this.call(name, ...([asked] as Arguments<N>))) as unknown as { items: Item<N>[]; next?: unknown }
      yield* page.items
      after = page.next ?? null
    }
  }

  /** Starts a turn: an agent of the profile works on the instruction. With the same `key` it is started once. */
  async run(profile: string, instruction: string, options: RunOptions = {}): Promise<Turn> {
    const { resultSchema, labels, limits, session, agent, onBehalfOf, external, start, ...settings } = options
    const all = { result_schema: resultSchema, labels, limits, session_id: session, agent_id: agent, on_behalf_of: onBehalfOf, external, ...start }
    const given = Object.fromEntries(Object.entries(all).filter(([, value]) => value !== undefined))
    const started = await this.call('start_turn', { body: { profile_name: profile, instruction, ...given }, ...settings })
    return this.turn(started.agent_turn_id)
  }

  /** Returns a turn by its id. */
  turn(id: string): Turn {
    return new Turn(this, id)
  }

  /** Creates or changes profiles, tools and settings: all of them, or none. The same again changes nothing. */
  apply(...manifests: (Tool | Schemas['Manifest'])[]): Promise<Schemas['Applied'][]> {
    return this.call('apply_resources', { body: { manifests: manifests.map(one => ('run' in one ? { tool: one.tool } : one)) } })
  }

  /** Registers a tool with a key of scope `tool`, which may not apply. */
  register({ tool }: Tool, settings: Settings = {}): Promise<Schemas['Applied']> {
    return this.call('register_tool', { path: { name: tool.name }, body: tool, ...settings })
  }

  /** Answers the calls of tools in this process, until the signal aborts. */
  serve(tools: readonly Tool[], options: ServeOptions = {}): Promise<void> {
    return serve(this, tools, options)
  }

  /**
   * Yields what happens in the project, from now on or after an event. Ends when the signal aborts, with its reason. Without `after`, what happens
   * while the connection is cut can be missed until the first event has come.
   */
  watch({ kinds, ...watching }: Watching & { kinds?: Schemas['EventKind'][] } = {}): AsyncGenerator<Event, void, undefined> {
    return follow(this, kinds ? { kinds } : {}, watching)
  }

  /** Opens a session. */
  async openSession(body: Schemas['Open'] = {}, settings: Settings = {}): Promise<Session> {
    return this.session((await this.call('open_session', { body, ...settings })).session_id)
  }

  /** Returns a session by its id. */
  session(id: string): Session {
    return new Session(this, id)
  }

  /** Stores content at a path, as a new version. */
  putArtifact(path: string, content: string | Uint8Array, settings: Settings = {}): Promise<Schemas['Artifact']> {
    return this.call('put_artifact', { query: { path }, body: content, ...settings })
  }

  /** Reads an artifact. If `version` is omitted, the newest. */
  readArtifact(path: string, { version, ...settings }: Settings & { version?: number | undefined } = {}): Promise<Uint8Array> {
    return this.call('read_artifact', { query: { path, ...(version !== undefined && { version }) }, ...settings })
  }

  /** What waits for a person. */
  requests({ signal }: { signal?: AbortSignal | undefined } = {}): AsyncGenerator<Schemas['ShownRequest'], void, undefined> {
    return this.pages('list_requests', { signal })
  }

  approve(call: string, note?: string, settings: Settings = {}): Promise<Schemas['RequestDecided']> {
    return this.decide(call, { decision: 'approved', ...(note !== undefined && { note }) }, settings)
  }

  reject(call: string, note?: string, settings: Settings = {}): Promise<Schemas['RequestDecided']> {
    return this.decide(call, { decision: 'rejected', ...(note !== undefined && { note }) }, settings)
  }

  answer(call: string, answer: unknown, settings: Settings = {}): Promise<Schemas['RequestDecided']> {
    return this.decide(call, { decision: 'answered', answer }, settings)
  }

  private decide(call: string, body: Schemas['Decide'], settings: Settings) {
    return this.call('decide_request', { path: { call }, body, ...settings })
  }
}
