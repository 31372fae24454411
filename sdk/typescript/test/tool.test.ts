import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Call, isCode, type Tool, tool } from 'waybill-ai'
import { agent, network, project } from './lib.ts'

/** Asks an agent that calls `name` once, and says the result. */
async function ask(serves: Tool, script: unknown[], url?: string) {
  const waybill = await project()
  await waybill.apply(serves, agent('asker', script, { allowed_tools: [serves.tool.name] }))
  const stop = new AbortController()
  const calls: { status: string; outcome: string }[] = []
  const options = { signal: stop.signal, lease: 3, onCall: (call: (typeof calls)[number]) => calls.push(call) }
  const serving = waybill.with(url === undefined ? {} : { url }).serve([serves], options)
  const end = async () => {
    stop.abort()
    await serving
  }
  return { waybill, turn: await waybill.run('asker', 'Ask.'), end, calls, stop, serving }
}

const area = (run: (args: { w: number; h?: number | undefined }, call: Call) => unknown, more = {}) =>
  tool({
    name: 'area',
    description: 'Multiplies.',
    parameters: { type: 'object', properties: { w: { type: 'number' }, h: { type: 'number' } }, required: ['w'] },
    ...more,
    run,
  })
const script = [{ call: { area: { w: 2, h: 3 } } }, { say: '{{result}}' }]

test('a function of this process answers the calls of agents', async () => {
  const one = await ask(area(async ({ w, h = 1 }, call) => ({ area: w * h, key: call.idempotencyKey === call.id })), script)
  assert.deepEqual(JSON.parse(await one.turn.result()), { area: 6, key: true })
  await one.end()
  assert.deepEqual(one.calls.map(call => [call.status, call.outcome]), [['success', 'applied']])
})

test('the model is shown what a tool throws', async () => {
  const fails = area(() => {
    throw new Error('the scale is broken')
  })
  const one = await ask(fails, script)
  assert.match(await one.turn.result<string>(), /the scale is broken/)
  await one.end()
})

test('the model is told of a result that cannot be sent', async () => {
  const one = await ask(area(() => 'x'.repeat(5_000_000)), script)
  assert.match(await one.turn.result<string>(), /cannot be sent.*too_large/)
  const two = await ask(area(() => 1n), script)
  assert.match(await two.turn.result<string>(), /BigInt/)
  await Promise.all([one.end(), two.end()])
})

test('a claim and a report whose answers are lost are done once', async () => {
  let runs = 0
  const lost = { claim: 1, report: 1 }
  const isLost = (request: string) =>
    (request.includes('calls/claim') && lost.claim-- > 0) || (request.includes('/report') && lost.report-- > 0)
  using bad = await network(request => (isLost(request) ? 0 : null))
  const one = await ask(area(({ w }) => `${w} in run ${++runs}`), script, bad.url)
  assert.match(await one.turn.result<string>(), /2 in run 1/)
  await one.end()
  assert.ok(bad.cuts() >= 2, `${bad.cuts()} cuts`)
  assert.equal(runs, 1)
})

test('a long call keeps its lease, and a worker that is told to end ends its calls first', async () => {
  let begun = () => {}
  const isBegun = new Promise<void>(done => (begun = done))
  const slow = area(async ({ w }, call) => {
    begun()
    await new Promise(done => setTimeout(done, 5_000))
    return `${w}, aborted: ${call.signal.aborted}`
  })
  const one = await ask(slow, script)
  await isBegun
  await one.end()
  assert.match(await one.turn.result<string>(), /2, aborted: false/)
})

test('a call is aborted when the server takes it away, and the worker goes on under another name', async () => {
  let runs = 0
  let isCut = false
  let aborted = false
  using bad = await network(() => (isCut ? 0 : null))
  const slow = area(
    async (_, call) => {
      if ((runs += 1) > 1) return 'by another claim'
      isCut = true
      await new Promise<void>(done => call.signal.addEventListener('abort', () => done()))
      aborted = true
      isCut = false
      return 'too late'
    },
    { effect: 'idempotent' },
  )
  const one = await ask(slow, script, bad.url)
  assert.match(await one.turn.result<string>({ timeout: 30 }), /by another claim/)
  await one.end()
  assert.ok(aborted)
})

test('a person is asked, and the call goes on when they have decided', async () => {
  const one = await ask(area(({ w }) => `${w} paid`, { approval: 'always' }), script)
  for await (const event of one.turn.watch())
    if (event.kind === 'request') for (const request of await one.turn.requests()) await one.waybill.approve(request.tool_call_id, 'fine')
  assert.match(await one.turn.result<string>(), /2 paid/)
  const again = await one.waybill.run('asker', 'Again.')
  for await (const event of again.watch())
    if (event.kind === 'request') for (const request of await again.requests()) await one.waybill.reject(request.tool_call_id, 'too dear')
  assert.match(await again.result<string>(), /too dear/)
  await one.end()
})

test('a key of scope tool registers and serves its tools, and a worker that is refused says so', async () => {
  const waybill = await project()
  const { key } = await waybill.call('create_key', { body: { name: 'area', scope: 'tool', bounds: { targets: ['area'] } } })
  const mine = waybill.with({ key })
  const one = area(({ w }) => w)
  assert.equal((await mine.register(one)).change, 'created')
  const other = tool({ name: 'other', description: 'Of another target.', run: () => null })
  await assert.rejects(mine.serve([other]), error => isCode(error, 'forbidden'))
})
