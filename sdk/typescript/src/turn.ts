/** A turn: watched, waited for, and looked at; and a session of several. */
import type { RunOptions, Waybill } from './client.ts'
import { TurnFailed, WaybillError } from './error.ts'
import { type Event, follow, type Watching } from './events.ts'
import type { Schemas, Settings } from './http.ts'
import { bound, pause } from './wait.ts'

type Signal = { signal?: AbortSignal | undefined }
/** Which model call of the turn. If omitted, the last one. */
type AtStep = Signal & { step?: string | undefined }

export interface WaitOptions extends Signal {
  /** Seconds to wait before a `WaybillError` with code `timeout`. If omitted, as long as it takes. */
  timeout?: number | undefined
}

export interface TurnWatching extends Watching {
  /** Also what the model is writing, live. These pieces are not repeated after an interruption. */
  tokens?: boolean | undefined
  /** Also the events of all turns below this one, which must be the root of its tree. */
  tree?: boolean | undefined
}

export class Turn {
  readonly id: string
  private readonly waybill: Waybill

  constructor(waybill: Waybill, id: string) {
    this.waybill = waybill
    this.id = id
  }

  /** The turn as it is now: its state, its steps, what it has used, and its deliverable. */
  show({ signal }: Signal = {}): Promise<Schemas['Shown']> {
    return this.waybill.call('show_turn', { path: { turn: this.id }, signal })
  }

  /** Waits until the turn has ended, however it ended. */
  async wait({ timeout, signal }: WaitOptions = {}): Promise<Schemas['Shown']> {
    const late = new WaybillError('show_turn', 'timeout', `Turn ${this.id} has not ended within ${timeout} s.`)
    const until = timeout === undefined ? Number.POSITIVE_INFINITY : Date.now() + timeout * 1000
    // A server that does not answer has a second more.
    const end = bound([signal], timeout === undefined ? undefined : timeout + 1, late)
    try {
      while (true) {
        const asked = Date.now()
        const query = { wait_seconds: Math.max(0, Math.min(25, (until - asked) / 1000)) }
        const shown = await this.waybill.call('show_turn', { path: { turn: this.id }, query, signal: end.signal })
        if (shown.turn.status !== 'open') return shown
        if (Date.now() >= until) throw late
        // A server that is about to end does not wait.
        if (Date.now() - asked < 500) await pause(0.5, end.signal)
      }
    } finally {
      end.free()
    }
  }

  /** Waits for the end, and returns what was delivered: a text, or what fits `resultSchema`. Throws `TurnFailed` if the turn did not succeed. */
  async result<T = unknown>(options: WaitOptions = {}): Promise<T> {
    const { turn, deliverable } = await this.wait(options)
    if (turn.status !== 'success') throw new TurnFailed(this.id, turn.status, turn.reason ?? null, deliverable)
    return deliverable as T
  }

  /** Yields what happens until the turn ends. Survives lost connections, and then misses nothing but tokens. */
  watch({ tokens, tree, ...watching }: TurnWatching = {}): AsyncGenerator<Event, void, undefined> {
    const view = { [tree ? 'root' : 'turn']: this.id, ...(tokens && { tokens: [this.id] }) }
    return follow(this.waybill, view, watching)
  }

  stop(reason: string, settings: Settings = {}): Promise<Schemas['StopAnswer']> {
    return this.waybill.call('stop_turn', { path: { turn: this.id }, body: { reason }, ...settings })
  }

  /** The receipts of its model calls: what each of them saw. */
  receipts({ signal }: Signal = {}): Promise<Schemas['OneReceipt'][]> {
    return this.waybill.call('list_receipts', { path: { turn: this.id }, signal })
  }

  /** What a model call saw: messages with their layers, tokens and cards, and what was left out. */
  context({ step, signal }: AtStep = {}): Promise<Schemas['Seen']> {
    return this.waybill.call('show_context', { path: { turn: this.id }, query: at(step), signal })
  }

  /** The request of a model call, byte for byte as it was sent. */
  async request({ step, signal }: AtStep = {}): Promise<string> {
    return (await this.waybill.send('show_context_request', { path: { turn: this.id }, query: at(step), signal })).text()
  }

  /** Defects of a model call: those that providers refuse, and those that they silently bill for. */
  lint({ step, signal }: AtStep = {}): Promise<Schemas['Linted']> {
    return this.waybill.call('lint_context', { path: { turn: this.id }, query: at(step), signal })
  }

  /** Runs the turn again from one of its model calls, with other cards or another profile. */
  async fork(change: Schemas['Fork'] = {}, settings: Settings = {}): Promise<Turn> {
    return this.waybill.turn((await this.waybill.call('fork_turn', { path: { turn: this.id }, body: change, ...settings })).agent_turn_id)
  }

  /** What this turn asks a person, and what waits for a decision: see `waybill.approve`. */
  async requests({ signal }: Signal = {}): Promise<Schemas['ShownRequest'][]> {
    const mine: Schemas['ShownRequest'][] = []
    for await (const one of this.waybill.requests({ signal })) if (one.agent_turn_id === this.id) mine.push(one)
    return mine
  }
}

const at = (step: string | undefined) => (step === undefined ? {} : { step_id: step })

/** A conversation of several turns. */
export class Session {
  readonly id: string
  private readonly waybill: Waybill

  constructor(waybill: Waybill, id: string) {
    this.waybill = waybill
    this.id = id
  }

  run(profile: string, instruction: string, options: RunOptions = {}): Promise<Turn> {
    return this.waybill.run(profile, instruction, { ...options, session: this.id })
  }

  /** Its messages, oldest first. */
  messages({ signal }: Signal = {}): AsyncGenerator<Schemas['Placed'], void, undefined> {
    return this.waybill.pages('list_messages', { path: { session: this.id }, signal })
  }

  end(settings: Settings = {}): Promise<Schemas['Session']> {
    return this.waybill.call('end_session', { path: { session: this.id }, ...settings })
  }
}
