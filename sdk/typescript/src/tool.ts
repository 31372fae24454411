/** Tools that run in your process. */
import type { Schemas } from './http.ts'

/** The arguments that a JSON Schema describes. What it does not know is `unknown`. */
export type FromSchema<S> = S extends { readonly enum: readonly (infer E)[] }
  ? E
  : S extends { readonly type: 'string' }
    ? string
    : S extends { readonly type: 'number' | 'integer' }
      ? number
      : S extends { readonly type: 'boolean' }
        ? boolean
        : S extends { readonly type: 'array'; readonly items: infer I }
          ? FromSchema<I>[]
          : S extends { readonly type: 'object'; readonly properties: infer P }
            ? { [K in keyof P as K extends Required<S> ? K : never]: FromSchema<P[K]> } & {
                [K in keyof P as K extends Required<S> ? never : K]?: FromSchema<P[K]>
              }
            : S extends { readonly type: 'object' }
              ? Record<string, unknown>
              : unknown
type Required<S> = S extends { readonly required: readonly (infer R)[] } ? (string extends R ? never : R) : never

/** A call that an agent makes. */
export interface Call {
  id: string
  /** The same whichever process gets the call: do the work once for each key. */
  idempotencyKey: string
  agentId: string
  turnId: string
  /** When the call times out. */
  deadline: Date
  /** The user for whom the turn was started, if its caller named one. */
  onBehalfOf: string | null
  /** Aborts at the deadline, and when the call is lost: another process may have it then. What `run` returns after that is dropped. */
  signal: AbortSignal
}

type Manifest = Schemas['Tool']

export interface ToolOptions<S> {
  name: string
  /** What the model reads. */
  description: string
  /** JSON Schema of the arguments, which the server checks. If omitted, the tool has none. */
  parameters?: S
  /** JSON Schema of the result. A result that does not fit is a failure. */
  result?: Record<string, unknown>
  /** What calling it twice does. If omitted, `once`: a call whose process was lost is not repeated. */
  effect?: NonNullable<Manifest['effect']>
  /** When a person must agree first. If omitted, `never`. */
  approval?: NonNullable<Manifest['approval']>
  /** Seconds for one call. If omitted, 60. */
  timeout?: number
  /** Whether its results count as the project's own content, and not as content from outside. */
  trusted?: boolean
  /** The queue of its calls. If omitted, the name of the tool. All processes of one target must serve the same tools. */
  target?: string
  /** Does the work. What it throws is shown to the model as a failure. */
  run(args: FromSchema<S>, call: Call): unknown
}

export interface Tool {
  /** What `apply` and `register` send. */
  readonly tool: Manifest
  run(args: never, call: Call): unknown
}

/** Makes a tool of a function. */
export function tool<const S extends Record<string, unknown> = { type: 'object' }>(options: ToolOptions<S>): Tool {
  const { run, timeout, target = options.name, ...manifest } = options
  return { tool: { ...manifest, target, ...(timeout !== undefined && { timeout_seconds: timeout }) } as Manifest, run }
}
