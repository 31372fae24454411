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

type Claimed = Schemas['OneCall']

/** Answers the calls of tools until the signal aborts. Throws if the server refuses the worker, for example because of its key. */
export async function serve(waybill: Waybill, tools: readonly Tool[], options: ServeOptions): Promise<void> {
  const stop = options.signal ?? new AbortController().signal
  while (!stop.aborted) {
    await serveLease(waybill, tools, options, stop)
    if (!stop.aborted) await pause(backoff(1))
  }
}

/** Serves under one name, for as long as the server takes it for alive. */
async function serveLease(waybill: Waybill, tools: readonly Tool[], options: ServeOptions, stop: AbortSignal) {
  const { atOnce = 16, lease = 30, drain = 30, onCall } = options
  const worker = `typescript-${crypto.randomUUID()}`
  const impatient = waybill.with({ patience: 0 })
  const lost = new AbortController()
  const ended = AbortSignal.any([stop, lost.signal])
  const over = new Promise<void>(done => ended.addEventListener('abort', () => done(), { once: true }))
  /** Claims that were begun, and when. */
  const seen = new Map<string, number>()
  const running = new Set<Promise<void>>()

  /** Takes calls of one target while there is room. */
  async function claim(target: string) {
    const mine = new Set<Promise<void>>()
    for (let failures = 0; !ended.aborted; ) {
      const most = atOnce - mine.size
      if (most <= 0) {
        await Promise.race([over, ...mine])
        continue
      }
      const asked = Date.now()
      try {
        const body = { worker, target, most, wait_seconds: 20, lease_seconds: lease }
        const { calls } = await waybill.call('claim_calls', { body, signal: ended })
        failures = 0
        for (const work of calls.map(begin)) {
          if (!work) continue
          mine.add(work)
          void work.finally(() => mine.delete(work))
        }
        // A server that is about to end does not wait.
        if (calls.length === 0 && Date.now() - asked < 1000) await pause(1, ended).catch(() => {})
      } catch (error) {
        if (ended.aborted) return
        if (isCode(error, 'lease_lost')) return lost.abort(error)
        if (!(error instanceof WaybillError) || (error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status))) {
          lost.abort(error)
          throw error
        }
        // The answer was lost, and calls may be ours: a heartbeat lists them.
        await adopt(10).catch(() => {})
        await pause(Math.max(error.retryAfter ?? 0, backoff((failures += 1))), ended).catch(() => {})
      }
    }
  }

  /** Renews the lease apart from the work, while there is something to keep. */
  async function beat() {
    let until = Date.now() + lease * 1000
    while (!lost.signal.aborted) {
      await pause(Math.min(lease / 3, (until - Date.now()) / 1000), lost.signal).catch(() => {})
      const now = Date.now()
      if (running.size > 0) {
        if (now >= until) return lost.abort(new Error('the server could not be reached for as long as the lease lasts'))
        const renewed = adopt(Math.min(lease / 3, (until - now) / 1000))
        if (!(await renewed.then(() => true, () => false))) continue
      }
      until = now + lease * 1000
    }
  }

  /** Sends a heartbeat, and begins the calls that the worker holds and does not know. */
  async function adopt(timeout: number) {
    try {
      const held = await impatient.call('keep_lease', { body: { worker, lease_seconds: lease }, timeout, signal: lost.signal })
      held.calls.forEach(begin)
    } catch (error) {
      if (isCode(error, 'lease_lost')) lost.abort(error)
      throw error
    }
  }

  /** Begins a call, unless this claim of it was begun before: one answer of the server may overtake another. */
  function begin(call: Claimed): Promise<void> | null {
    const now = Date.now()
    for (const [claim, at] of seen) if (now - at > 600_000) seen.delete(claim)
    const claim = `${call.tool_call_id} ${call.claim_token}`
    if (seen.has(claim)) return null
    seen.set(claim, now)
    const work = answer(call).finally(() => running.delete(work))
    running.add(work)
    return work
  }

  /** Runs one call, and reports. */
  async function answer(call: Claimed) {
    const late = new AbortController()
    const left = new Date(call.deadline_at).getTime() - Date.now()
    const timer = setTimeout(() => late.abort(new Error('the call has timed out')), Math.min(2 ** 31 - 1, Math.max(0, left)))
    const signal = AbortSignal.any([late.signal, lost.signal])
    const report = (status: string, result: unknown) => {
      const body = { worker, claim_token: call.claim_token, card_id: uuid7(), status, result }
      return waybill.call('report_call', { path: { call: call.tool_call_id }, body, signal })
    }
    let { status, result } = await run(tools, call, signal)
    let outcome = 'dropped'
    try {
      const reported = report(status, result).catch(error => {
        if (!isCode(error, 'invalid', 'too_large')) throw error
        status = 'failed'
        return report(status, `The result cannot be sent. ${error.message}`)
      })
      outcome = (await reported).outcome
    } catch (error) {
      // It has timed out, or another process has it: nothing is left to do for it here.
      if (isCode(error, 'lease_lost')) lost.abort(error)
    } finally {
      clearTimeout(timer)
    }
    onCall?.({ tool: call.tool_name, id: call.tool_call_id, status, outcome })
  }

  const heart = beat()
  try {
    await Promise.all([...new Set(tools.map(one => one.tool.target!))].map(claim))
    // What was begun is ended, and what an abandoned claim has brought.
    if (!lost.signal.aborted) await adopt(10).catch(() => {})
    const enough = new AbortController()
    if (!lost.signal.aborted) await Promise.race([Promise.all(running), pause(drain, enough.signal).catch(() => {})])
    enough.abort()
  } finally {
    lost.abort(new Error('the worker has ended'))
    await heart
    await impatient.call('leave', { body: { worker }, timeout: 5 }).catch(() => {})
  }
}

/** Calls the function. A failure is an answer too: the model reads it, and may call again. */
async function run(tools: readonly Tool[], call: Claimed, signal: AbortSignal): Promise<{ status: string; result: unknown }> {
  try {
    const one = tools.find(one => one.tool.name === call.tool_name)
    if (!one) throw new Error(`this process does not serve the tool \`${call.tool_name}\``)
    const result = await one.run(JSON.parse(call.arguments) as never, {
      id: call.tool_call_id,
      idempotencyKey: call.idempotency_key,
      agentId: call.agent_id,
      turnId: call.agent_turn_id,
      deadline: new Date(call.deadline_at),
      onBehalfOf: call.on_behalf_of ?? null,
      signal,
    })
    return { status: 'success', result: JSON.parse(JSON.stringify(result ?? null)) }
  } catch (error) {
    return { status: 'failed', result: error instanceof Error ? error.message || error.name : String(error) }
  }
}
