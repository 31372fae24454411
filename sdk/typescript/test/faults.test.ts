/** A server, a clock and functions that misbehave. The server is a function here. */
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { setImmediate as turnOfLoop } from 'node:timers/promises'
import { type Call, isCode, tool, Waybill } from 'waybill-ai'
import { all } from './lib.ts'

const json = (body: unknown, headers = {}) => Response.json(body, { headers })
const busy = () => Response.json({ code: 'unavailable', detail: 'not now' }, { status: 503 })
const never = (signal: AbortSignal) => new Promise<Response>((_, fail) => signal.addEventListener('abort', () => fail(signal.reason)))

type Served = (path: string, body: Record<string, unknown>, signal: AbortSignal) => Response | Promise<Response>

/** A client of a server that answers like this. */
function client(answer: Served, patience = 0) {
  const asked = async (input: unknown, init?: RequestInit) =>
    answer((input as URL).pathname.replace(/.*\/demo\//, '') + (input as URL).search, JSON.parse(String(init?.body ?? '{}')), init!.signal!)
  return new Waybill({ url: 'http://server', project: 'demo', patience, fetch: asked as typeof fetch })
}

/** Serves one call, which the server hands out once and lists in each heartbeat until it is reported. */
function one(run: (call: Call) => unknown, { seconds = 3600, ahead = 0, report = () => json({ outcome: 'applied' }), claimed = json } = {}) {
  const stop = new AbortController()
  const reports: Record<string, unknown>[] = []
  const outcomes: string[] = []
  const deadline_at = new Date(Date.now() + ahead + seconds * 1000).toISOString()
  const call = { tool_call_id: 'c', claim_token: '1', tool_name: 'work', arguments: '{}', idempotency_key: 'c', agent_id: 'a', agent_turn_id: 't', deadline_at }
  const date = () => ({ date: new Date(Date.now() + ahead).toUTCString() })
  let claims = 0
  const waybill = client((path, body, signal) => {
    if (path === 'calls/claim') return claims++ === 0 ? claimed({ calls: [call] }, date()) : never(signal)
    if (path === 'worker/heartbeat') return json({ turns: [], calls: reports.length > 0 ? [] : [call] }, date())
    if (path === 'worker/leave') return json({ done: true })
    reports.push(body)
    return report()
  })
  const work = tool({ name: 'work', description: 'Works.', run: (_, call) => run(call) })
  const serve = (more = {}) => waybill.serve([work], { signal: stop.signal, onCall: ({ outcome }) => outcomes.push(outcome), ...more })
  return { serve, stop, reports, outcomes, claims: () => claims }
}

async function until(holds: () => boolean) {
  for (let n = 0; !holds(); n += 1) {
    assert.ok(n < 500)
    await new Promise(done => setTimeout(done, 10))
  }
}

test('a call that takes half an hour is begun once', async (context: TestContext) => {
  context.mock.timers.enable({ apis: ['setTimeout', 'Date'], now: Date.now() })
  let runs = 0
  const it = one(() => new Promise(() => (runs += 1)))
  const serving = it.serve({ lease: 300 })
  for (let n = 0; n < 18; n += 1) {
    for (let m = 0; m < 10; m += 1) await turnOfLoop()
    context.mock.timers.tick(100_000)
  }
  assert.equal(runs, 1)
  it.stop.abort()
  for (let n = 0; n < 5; n += 1) {
    for (let m = 0; m < 10; m += 1) await turnOfLoop()
    context.mock.timers.tick(31_000)
  }
  await serving
})

test('a function that never ends holds its place until the deadline', async () => {
  const it = one(() => new Promise(() => {}), { seconds: 1 })
  const serving = it.serve({ atOnce: 1 })
  await until(() => it.claims() === 2)
  assert.deepEqual(it.outcomes, ['dropped'])
  it.stop.abort()
  await serving
})

test('deadlines are by the clock of the server', async () => {
  for (const ahead of [-7_200_000, 7_200_000]) {
    let left = 0
    const it = one(call => (left = call.deadline.getTime() - Date.now()), { seconds: 60, ahead })
    const serving = it.serve()
    await until(() => it.outcomes.length > 0)
    it.stop.abort()
    await serving
    assert.deepEqual(it.outcomes, ['applied'])
    assert.ok(left > 55_000 && left < 65_000, `${left}`)
  }
})

test('a result is sent until the server takes it, whatever the patience', async () => {
  let refusals = 3
  const it = one(() => 'paid', { report: () => (refusals-- > 0 ? busy() : json({ outcome: 'applied' })) })
  const serving = it.serve()
  await until(() => it.outcomes.length > 0)
  it.stop.abort()
  await serving
  assert.deepEqual(it.outcomes, ['applied'])
  assert.equal(new Set(it.reports.map(report => report.card_id)).size, 1)
})

test('a result that cannot be sent does not look as if nothing was done', async () => {
  const it = one(() => ({ paid: 1n }))
  const serving = it.serve()
  await until(() => it.outcomes.length > 0)
  it.stop.abort()
  await serving
  assert.match(String(it.reports[0]!.result), /was carried out.*BigInt/)
})

test('what `onCall` throws ends the worker, and is thrown by `serve`', async () => {
  const it = one(() => 1)
  const onCall = () => {
    throw new Error('mine')
  }
  await assert.rejects(it.serve({ onCall }), { message: 'mine' })
  await assert.rejects(client(busy).serve([]), TypeError)
})

test('a claim that something else has answered is repeated', async () => {
  let pages = 1
  const claimed = (body: unknown, headers = {}) => (pages-- > 0 ? new Response('<html>', { headers: { 'content-type': 'text/html' } }) : json(body, headers))
  const it = one(() => 'done', { claimed })
  const serving = it.serve()
  await until(() => it.outcomes.length > 0)
  it.stop.abort()
  await serving
  assert.equal(it.reports.length, 1)
})

test('an answer of something else is unexpected, and no id leads to another operation', async () => {
  const html = client(() => new Response('<html>', { headers: { 'content-type': 'text/html' } }))
  const moved = client(() => new Response(null, { status: 301, headers: { location: 'https://server' } }))
  for (const waybill of [html, moved]) {
    await assert.rejects(waybill.turn('t').show(), error => isCode(error, 'unexpected'))
    await assert.rejects(all(waybill.turn('t').watch()), error => isCode(error, 'unexpected'))
  }
  for (const id of ['', '.', '..']) await assert.rejects(html.turn(id).show(), error => isCode(error, 'invalid'))
  await assert.rejects(html.run('a', 'b', { key: 'Bestellung für 1' }), error => isCode(error, 'invalid'))
  for (const url of ['localhost:7070', 'server', 'http://me:secret@server'])
    assert.throws(() => new Waybill({ url }), error => error instanceof TypeError && !error.message.includes('secret'))
  assert.throws(() => new Waybill({ key: 'wb_sec\nret' }), error => error instanceof TypeError && !error.message.includes('wb_sec'))
  assert.equal(html.with({ project: undefined }).project, 'demo')
})

test('waiting ends in time although the server does not answer, and does not hurry one that is about to end', async () => {
  const silent = client((_path, _body, signal) => never(signal))
  await assert.rejects(silent.turn('t').wait({ timeout: 0.1 }), error => isCode(error, 'timeout'))
  let asked = 0
  const hasty = client(() => json({ turn: { status: (asked += 1) < 3 ? 'open' : 'success' }, deliverable: 'done' }))
  const begun = Date.now()
  assert.equal(await hasty.turn('t').result(), 'done')
  assert.ok(Date.now() - begun > 900)
})

test('an end is not missed because a server that is about to end sends nothing', async () => {
  const stream = (text: string) => new Response(text, { headers: { 'content-type': 'text/event-stream' } })
  const event = (id: number, kind: string) => `id: ${id}\nevent: ${kind}\ndata: {"event_id":"${id}","agent_turn_id":"t"}\n\n`
  for (const tree of [false, true]) {
    const answers = [`: open\n\n${event(1, 'step')}`, ': open\n\n', event(2, 'task')]
    const waybill = client(path => (path.includes('events') ? stream(answers.shift()!) : json({ turn: { status: 'success' } })))
    assert.deepEqual((await all(waybill.turn('t').watch({ tree }))).map(event => event.kind), ['step', 'task'])
  }
})
