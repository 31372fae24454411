/** A tool worker: claims the calls of tools, keeps its lease, runs them, and reports. It keeps nothing, so it may be killed at any time. */
import type { Waybill } from './client.ts'
import { isCode, WaybillError } from './error.ts'
import { read, type Schemas } from './http.ts'
import type { Tool } from './tool.ts'
import { backoff, bound, pause, uuid7 } from './wait.ts'

export interface ServeOptions {
  /** Calls of one target at the same time, at most 100. If omitted, 16. */
  atOnce?: number | undefined
  /** Seconds of silence after which other processes get the calls that this one holds. If omitted, 30. */
  lease?: number | undefined
  /** Seconds that running calls have to end once `signal` aborts. If omitted, 30. */
  drain?: number | undefined
  /** Ends the worker: it takes no more calls, and ends those that it has. */
  signal?: AbortSignal | undefined
  /** Called for each call that has ended. `dropped`: too late, or another process has it. What it throws ends the worker. */
  onCall?: ((call: { tool: string; id: string; status: string; outcome: string }) => void) | undefined
}

type Claimed = Schemas['OneCall']
/** Seconds for which a call is known after its report: an answer of the server that still lists it may be on its way. */
const REMEMBERED = 120

/** Answers the calls of tools until the signal aborts. Throws if the server refuses the worker, for example because of its key. */
export async function serve(waybill: Waybill, tools: readonly Tool[], options: ServeOptions): Promise<void> {
  if (tools.length === 0) throw new TypeError('there are no tools to serve')
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
  // A result is sent for as long as its call is ours.
  const patient = waybill.with({ patience: Number.POSITIVE_INFINITY })
  /** The calls are not ours any more. */
  const lost = new AbortController()
  /** Nothing is sent any more. */
  const over = new AbortController()
  const claiming = bound([stop, lost.signal])
  const ended = claiming.signal
  const running = new Set<Promise<void>>()
  /** Claims that were begun, and those of them whose calls were reported, and when. A claim is not begun twice, even if it cannot be reported. */
  const begun = new Set<string>()
  const reported = new Map<string, number>()
  let failure: { error: unknown } | undefined

  /** Ends the worker with an error. */
  function fail(error: unknown) {
    failure ??= { error }
    lost.abort(error)
  }

  /** Takes calls of one target while there is room. */
  async function claim(target: string) {
    let mine = 0
    let wake = () => {}
    ended.addEventListener('abort', () => wake())
    // Short enough that a lost answer is noticed while the lease that came with it lasts.
    const wait = Math.min(20, lease / 2)
    for (let failures = 0; !ended.aborted; ) {
      const most = Math.min(100, atOnce) - mine
      if (most <= 0) {
        await new Promise<void>(done => (wake = done))
        continue
      }
      const asked = Date.now()
      try {
        const body = { worker, target, most, wait_seconds: wait, lease_seconds: lease }
        const taken = await take('claim_calls', waybill.send('claim_calls', { body, signal: ended, timeout: wait + 1 + lease / 4 }))
        failures = 0
        for (const work of taken) {
          mine += 1
          void work.then(() => {
            mine -= 1
            wake()
          })
        }
        // A server that is about to end does not wait.
        if (taken.length === 0 && Date.now() - asked < 1000) await pause(Math.min(1, wait), ended).catch(() => {})
      } catch (error) {
        if (ended.aborted) return
        if (isCode(error, 'lease_lost')) return lost.abort(error)
        if (!(error instanceof WaybillError) || (error.status >= 400 && error.status < 500 && ![408, 429].includes(error.status))) return fail(error)
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
      await take('keep_lease', impatient.send('keep_lease', { body: { worker, lease_seconds: lease }, timeout, signal: lost.signal }))
    } catch (error) {
      // A worker that holds nothing has no lease to lose.
      if (isCode(error, 'lease_lost') && running.size > 0) lost.abort(error)
      throw error
    }
  }

  /** Begins the calls of an answer. Deadlines are by the clock of the server, which its answers tell. */
  async function take(name: 'claim_calls' | 'keep_lease', answered: Promise<Response>): Promise<Promise<void>[]> {
    const response = await answered
    const ahead = Date.parse(response.headers.get('date') ?? '') - Date.now() || 0
    const { calls } = (await read(name, response)) as { calls: Claimed[] }
    return calls.flatMap(call => begin(call, new Date(Date.parse(call.deadline_at) - ahead)) ?? [])
  }

  /** Begins a call, unless this claim of it was begun before: one answer of the server may overtake another. */
  function begin(call: Claimed, deadline: Date): Promise<void> | null {
    const claim = `${call.tool_call_id} ${call.claim_token}`
    if (lost.signal.aborted || begun.has(claim) || deadline.getTime() <= Date.now()) return null
    begun.add(claim)
    const work = answer(call, deadline).then(isReported => {
      running.delete(work)
      if (!isReported) return
      const now = Date.now()
      reported.set(claim, now)
      for (const [old, at] of reported) {
        if (now - at < REMEMBERED * 1000) break
        reported.delete(old)
        begun.delete(old)
      }
    })
    running.add(work)
    return work
  }

  /** Runs one call, and says whether the server has its report. Never fails. */
  async function answer(call: Claimed, deadline: Date): Promise<boolean> {
    const left = (deadline.getTime() - Date.now()) / 1000
    const late = bound([over.signal], left, new Error('the call has timed out'))
    const ours = bound([late.signal, lost.signal])
    const report = (status: string, result: unknown) => {
      const body = { worker, claim_token: call.claim_token, card_id: uuid7(), status, result }
      return patient.call('report_call', { path: { call: call.tool_call_id }, body, signal: late.signal })
    }
    let status = 'failed'
    let outcome: string | undefined
    try {
      // A function that does not heed its signal holds nothing up.
      const gone = new Promise<never>((_, drop) => ours.signal.addEventListener('abort', () => drop(ours.signal.reason)))
      const done = await Promise.race([run(tools, call, deadline, ours.signal), gone])
      status = done.status
      const sent = report(status, done.result).catch(error => {
        if (late.signal.aborted || (error instanceof WaybillError && ![400, 413, 422].includes(error.status))) throw error
        const what = status === 'success' ? 'The call was carried out, but its result cannot be sent' : 'The call failed, and why cannot be sent'
        status = 'failed'
        return report(status, `${what}: ${error instanceof Error ? error.message : 'it is not JSON'}`)
      })
      outcome = (await sent).outcome
    } catch (error) {
      // It has timed out, or another process has it: nothing is left to do for it here.
      if (isCode(error, 'lease_lost')) lost.abort(error)
    } finally {
      ours.free()
      late.free()
    }
    try {
      onCall?.({ tool: call.tool_name, id: call.tool_call_id, status, outcome: outcome ?? 'dropped' })
    } catch (error) {
      fail(error)
    }
    return outcome !== undefined
  }

  const heart = beat()
  await Promise.all([...new Set(tools.map(one => one.tool.target!))].map(claim))
  // What was begun is ended, and what an abandoned claim has brought. Without a lease, results in hand are sent: the server decides.
  if (!lost.signal.aborted) await adopt(10).catch(() => {})
  const enough = new AbortController()
  await Promise.race([Promise.all(running), pause(drain, enough.signal).catch(() => {})])
  enough.abort()
  const end = new Error('the worker has ended')
  lost.abort(end)
  over.abort(end)
  claiming.free()
  await heart
  await impatient.call('leave', { body: { worker }, timeout: 5 }).catch(() => {})
  if (failure) throw failure.error
}

/** Calls the function. A failure is an answer too: the model reads it, and may call again. */
async function run(tools: readonly Tool[], call: Claimed, deadline: Date, signal: AbortSignal): Promise<{ status: string; result: unknown }> {
  try {
    const one = tools.find(one => one.tool.name === call.tool_name)
    if (!one) throw new Error(`this process does not serve the tool \`${call.tool_name}\``)
    const result = await one.run(JSON.parse(call.arguments) as never, {
      id: call.tool_call_id,
      idempotencyKey: call.idempotency_key,
      agentId: call.agent_id,
      turnId: call.agent_turn_id,
      deadline,
      onBehalfOf: call.on_behalf_of ?? null,
      signal,
    })
    return { status: 'success', result: result ?? null }
  } catch (error) {
    const isError = typeof error === 'object' && error !== null && 'message' in error
    return { status: 'failed', result: isError ? error.message || 'the tool failed' : (error ?? 'the tool failed') }
  }
}
