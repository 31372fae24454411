/** A tool worker: claims the calls of tools, keeps its lease, runs them, and reports. It keeps nothing, so it may be killed at any time. */
import type { Waybill } from './client.ts'
import { isCode, WaybillError } from './error.ts'
import type { Schemas } from './http.ts'
import type { Tool } from './tool.ts'
import { backoff, pause, uuid7 } from './wait.ts'

export interface ServeOptions {
  /** Calls of one target at the same time. If omitted, 16. */
  atOnce?: number | undefined
  /** Seconds of silence after which other processes get the calls that this one holds. If omitted, 30. */
  lease?: number | undefined
  /** Seconds that running calls have to end once `signal` aborts. If omitted, 30. */
  drain?: number | undefined
  /** Ends the worker: it takes no more calls, and ends those that it has. */
  signal?: AbortSignal | undefined
  /** Called for each call that was answered. `dropped`: too late, or another process has it. */
  onCall?: ((call: { tool: string; id: string; status: string; outcome: string }) => void) | undefined
}

/** Answers the calls of tools until the signal aborts. Throws if the server refuses the worker, for example because of its key. */
export async function serve(waybill: Waybill, tools: readonly Tool[], options: ServeOptions): Promise<void> {
  const stop = options.signal ?? new AbortController().signal
  while (!stop.aborted) {
    const worker = new Worker(waybill, tools, options)
    const heart = worker.beat()
    try {
      await Promise.all([...new Set(tools.map(one => one.tool.target!))].map(target => worker.claim(target, stop)))
      await worker.drain()
    } finally {
      worker.lose(new Error('the worker has ended'))
      await heart
      await waybill.with({ patience: 0 }).call('leave', { body: { worker: worker.name }, timeout: 5 }).catch(() => {})
    }
    if (!stop.aborted) await pause(backoff(1))
  }
}

/** One name of this process, for as long as the server takes it for alive. */
class Worker {
  readonly name = `typescript-${crypto.randomUUID()}`
  private readonly waybill: Waybill
  private readonly tools: readonly Tool[]
  private readonly options: ServeOptions
  private readonly seconds: number
  /** Aborts when the lease is lost. */
  private readonly lost = new AbortController()
  /** Claims that were begun, and when. */
  private readonly seen = new Map<string, number>()
  private readonly running = new Set<Promise<void>>()

  constructor(waybill: Waybill, tools: readonly Tool[], options: ServeOptions) {
    this.waybill = waybill
    this.tools = tools
    this.options = options
    this.seconds = options.lease ?? 30
  }

  lose(reason: unknown) {
    this.lost.abort(reason)
  }

  /** Takes calls of one target while there is room, until the worker is to end or its lease is lost. */
  async claim(target: string, stop: AbortSignal) {
    const mine = new Set<Promise<void>>()
    const signal = AbortSignal.any([stop, this.lost.signal])
    const over = new Promise<void>(done => signal.addEventListener('abort', () => done(), { once: true }))
    for (let failures = 0; !signal.aborted; ) {
      const room = (this.options.atOnce ?? 16) - mine.size
      if (room <= 0) {
        await Promise.race([over, ...mine])
        continue
      }
      try {
        const body = { worker: this.name, target, most: room, wait_seconds: 20, lease_seconds: this.seconds }
        const { calls } = await this.waybill.call('claim_calls', { body, signal })
        failures = 0
        for (const work of calls.map(call => this.begin(call))) {
          if (!work) continue
          mine.add(work)
          void work.finally(() => mine.delete(work))
        }
      } catch (error) {
        if (signal.aborted) return
        if (isCode(error, 'lease_lost')) return this.lose(error)
        if (!(error instanceof WaybillError) || (error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status))) {
          this.lose(error)
          throw error
        }
        // The answer was lost, and calls may be ours: a heartbeat lists them.
        await this.adopt(10).catch(() => {})
        await pause(Math.max(error.retryAfter ?? 0, backoff((failures += 1))), signal).catch(() => {})
      }
    }
  }

  /** Renews the lease apart from the work, while there is something to keep. */
  async beat() {
    let until = Date.now() + this.seconds * 1000
    while (!this.lost.signal.aborted) {
      await pause(Math.min(this.seconds / 3, (until - Date.now()) / 1000), this.lost.signal).catch(() => {})
      const now = Date.now()
      if (this.running.size > 0) {
        if (now >= until) return this.lose(new Error('the server could not be reached for as long as the lease lasts'))
        const timeout = Math.min(this.seconds / 3, (until - now) / 1000)
        if (!(await this.adopt(timeout).then(() => true, () => false))) continue
      }
      until = now + this.seconds * 1000
    }
  }

  /** Sends a heartbeat, and begins the calls that the worker holds and does not know. */
  private async adopt(timeout: number) {
    try {
      const body = { worker: this.name, lease_seconds: this.seconds }
      const held = await this.waybill.with({ patience: 0 }).call('keep_lease', { body, timeout, signal: this.lost.signal })
      for (const call of held.calls) this.begin(call)
    } catch (error) {
      if (isCode(error, 'lease_lost')) this.lose(error)
      throw error
    }
  }

  /** Ends what was begun, and what an abandoned claim has brought. */
  async drain() {
    if (this.lost.signal.aborted) return
    await this.adopt(10).catch(() => {})
    const enough = new AbortController()
    await Promise.race([Promise.all(this.running), pause(this.options.drain ?? 30, enough.signal).catch(() => {})])
    enough.abort()
  }

  /** Begins a call, unless this claim of it was begun before: one answer of the server may overtake another. */
  private begin(call: Schemas['OneCall']): Promise<void> | null {
    const now = Date.now()
    for (const [claim, at] of this.seen) if (now - at > 600_000) this.seen.delete(claim)
    const claim = `${call.tool_call_id} ${call.claim_token}`
    if (this.seen.has(claim)) return null
    this.seen.set(claim, now)
    const work = this.answer(call).finally(() => this.running.delete(work))
    this.running.add(work)
    return work
  }

  /** Runs one call, and reports. */
  private async answer(claimed: Schemas['OneCall']) {
    const { tool_call_id: id, tool_name: tool, claim_token } = claimed
    const left = new Date(claimed.deadline_at).getTime() - Date.now()
    const late = new AbortController()
    const timer = setTimeout(() => late.abort(new Error('the call has timed out')), Math.min(2 ** 31 - 1, left))
    const signal = AbortSignal.any([late.signal, this.lost.signal])
    const report = (status: string, result: unknown) => {
      const body = { worker: this.name, claim_token, card_id: uuid7(), status, result }
      return this.waybill.call('report_call', { path: { call: id }, body, signal })
    }
    let { status, result } = await this.run(claimed, signal)
    let outcome = 'dropped'
    try {
      outcome = (await report(status, result).catch(error => {
        if (!isCode(error, 'invalid', 'too_large')) throw error
        status = 'failed'
        return report(status, `The result cannot be sent. ${error.message}`)
      })).outcome
    } catch (error) {
      // It has timed out, or another process has it: nothing is left to do for it here.
      if (isCode(error, 'lease_lost')) this.lose(error)
    } finally {
      clearTimeout(timer)
    }
    this.options.onCall?.({ tool, id, status, outcome })
  }

  /** Calls the function. A failure is an answer too: the model reads it, and may call again. */
  private async run(claimed: Schemas['OneCall'], signal: AbortSignal): Promise<{ status: string; result: unknown }> {
    try {
      const one = this.tools.find(one => one.tool.name === claimed.tool_name)
      if (!one) throw new Error(`this process does not serve the tool \`${claimed.tool_name}\``)
      const result = await one.run(JSON.parse(claimed.arguments) as never, {
        id: claimed.tool_call_id,
        idempotencyKey: claimed.idempotency_key,
        agentId: claimed.agent_id,
        turnId: claimed.agent_turn_id,
        deadline: new Date(claimed.deadline_at),
        onBehalfOf: claimed.on_behalf_of ?? null,
        signal,
      })
      return { status: 'success', result: JSON.parse(JSON.stringify(result ?? null)) }
    } catch (error) {
      return { status: 'failed', result: error instanceof Error ? error.message || error.name : String(error) }
    }
  }
}
