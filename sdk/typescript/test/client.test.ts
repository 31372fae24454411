import assert from 'node:assert/strict'
import { test } from 'node:test'
import { advice, isCode, operations, TurnFailed, tool, Waybill, WaybillError } from 'waybill-ai'
import { agent, all, network, project, server } from './lib.ts'

const echo = agent('echo', [{ say: 'You said {{query}}' }])

// UI-5: the client reaches every operation.
test('every operation of the document is reached, with its method and path', async () => {
  const document = await (await fetch(`${server.url}/openapi.json`)).json()
  const described = Object.values(document.paths as Record<string, Record<string, { operationId: string }>>)
  assert.deepEqual(described.flatMap(methods => Object.values(methods).map(one => one.operationId)).sort(), Object.keys(operations).sort())

  const asked: string[] = []
  const counting: typeof fetch = (input, init) => {
    asked.push(`${init?.method} ${(input as URL).pathname}`)
    return fetch(input, init)
  }
  const waybill = (await project()).with({ fetch: counting, patience: 0 })
  const loose = waybill.send.bind(waybill) as (name: string, request: object) => Promise<Response>
  for (const [name, { method, path, sends }] of Object.entries(operations)) {
    const id = '01a1ed78-87a3-757b-aea1-f4d542dbed8e'
    const ids = { turn: id, card: id, box: id, grant: id, session: id, call: id, batch: id, agent: id, key: id, name: 'none' }
    const request = { path: ids, ...(sends && { body: sends === 'application/json' ? {} : '' }) }
    try {
      const response = await loose(name, request)
      await response.body?.cancel()
    } catch (error) {
      assert.ok(error instanceof WaybillError, `${name}: ${error}`)
      assert.ok(!isCode(error, 'method_not_allowed', 'unexpected', 'unreachable', 'unsupported_media_type', 'internal'), error.message)
      assert.doesNotMatch(error.detail, /no such (path|operation)|openapi/i, error.message)
    }
    const project = path.startsWith('/v1/projects/{project}') ? waybill.project : ''
    const parts = (asked.at(-1) ?? '').split(' ')
    assert.equal(parts[0], method)
    assert.match(parts[1]!, new RegExp(`^${path.replace('{project}', project).replace(/\{\w+\}/g, '(none|[0-9a-f-]{36})')}$`))
  }
})

test('each code that the documentation names has advice', async () => {
  const { readFile } = await import('node:fs/promises')
  const text = await readFile(new URL('../../../docs/api.md', import.meta.url), 'utf8')
  const list = /stable `code`, such as ([^.]*)\./.exec(text)![1]!
  for (const [, code] of list.matchAll(/`(\w+)`/g)) assert.ok(code! in advice, code)
})

test('a turn is run, and what its model saw is on record', async () => {
  const waybill = await project()
  await waybill.apply(echo)
  const turn = await waybill.run('echo', 'bread', { labels: { team: 'blue' }, key: 'order-1' })
  assert.match(await turn.result<string>(), /^You said .*bread/s)
  assert.equal((await waybill.run('echo', 'bread', { labels: { team: 'blue' }, key: 'order-1' })).id, turn.id)
  await assert.rejects(waybill.run('echo', 'other bread', { key: 'order-1' }), error => isCode(error, 'idempotency_mismatch'))
  assert.deepEqual((await all(waybill.pages('list_turns', { query: { label: 'team=blue' } }))).map(one => one.agent_turn_id), [turn.id])

  const [call] = await turn.receipts()
  const seen = await turn.context({ step: call!.step_id })
  assert.equal(seen.receipt.request_hash, call!.receipt.request_hash)
  assert.match(await turn.request(), /^\{.*bread/s)
  assert.deepEqual((await turn.lint()).findings, [])
  const fork = await turn.fork()
  assert.equal(await fork.result(), await turn.result())
})

test('a result has the type that was asked for', async () => {
  const waybill = await project()
  await waybill.apply(agent('sum', [{ call: { submit_result: { sum: 3 } } }]))
  const resultSchema = { type: 'object', properties: { sum: { type: 'integer' } }, required: ['sum'] }
  const turn = await waybill.run('sum', '1 + 2', { resultSchema })
  const { sum } = await turn.result<{ sum: number }>()
  assert.equal(sum, 3)
})

test('a watched turn misses nothing and repeats nothing, however often the connection is cut', async () => {
  const waybill = await project()
  const count = tool({ name: 'count', description: 'Counts.', run: () => 'one more' })
  await waybill.apply(count, agent('counter', [...Array(6).fill({ call: { count: {} } }), { say: 'done' }], { allowed_tools: ['count'] }))
  const stop = new AbortController()
  const serving = waybill.serve([count], { signal: stop.signal })
  let streams = 0
  using bad = await network(request => (request.includes('/events') ? 900 + 300 * (streams += 1) : null))
  const turn = await waybill.run('counter', 'Count.')
  const [cut, tree, whole] = await Promise.all([
    all(waybill.with({ url: bad.url }).turn(turn.id).watch({ tokens: true })),
    all(waybill.with({ url: bad.url }).turn(turn.id).watch({ tree: true })),
    all(turn.watch()),
  ])
  stop.abort()
  await serving
  const ids = (events: typeof cut) => events.flatMap(event => (event.kind === 'token' ? [] : [event.event_id]))
  assert.ok(bad.cuts() >= 4, `${bad.cuts()} cuts`)
  assert.ok(whole.length > 20)
  assert.deepEqual(ids(cut), ids(whole))
  assert.deepEqual(ids(tree), ids(whole))
  assert.equal(cut.at(-1)?.kind, 'task')
  // On from an event in the middle, after the end; and from the last event, after which there is nothing.
  for (const tree of [false, true]) assert.deepEqual(ids(await all(turn.watch({ after: whole[9]!.id!, tree }))), ids(whole.slice(10)))
  assert.ok((await all(turn.watch({ after: whole.at(-1)!.id! }))).every(event => event.kind === 'state'))
})

test('what a model writes is seen while it writes', async () => {
  const waybill = await project()
  await waybill.apply(agent('poet', [{ say: 'Bread is baked from flour, water, salt and yeast. '.repeat(20) }]))
  let text = ''
  for await (const event of (await waybill.run('poet', 'Bread?')).watch({ tokens: true })) if (event.kind === 'token') text += event.text
  assert.match(text, /flour, water/)
})

test('a write whose answer is lost is sent again, and written once', async () => {
  const waybill = await project()
  await waybill.apply(echo)
  let lost = 0
  using bad = await network(request => (request.startsWith('POST') && lost++ < 2 ? 0 : null))
  const turn = await waybill.with({ url: bad.url }).run('echo', 'bread')
  assert.equal(bad.cuts(), 2)
  assert.deepEqual((await all(waybill.pages('list_turns', { query: { most: 1 } }))).map(one => one.agent_turn_id), [turn.id])
})

test('an error has its code and says what to do', async () => {
  const waybill = await project()
  const lost = await waybill.turn('01a1ed78-87a3-757b-aea1-f4d542dbed8e').show().catch(error => error)
  assert.ok(isCode(lost, 'not_found'))
  assert.deepEqual([lost.status, lost.operation, lost.advice], [404, 'show_turn', advice.not_found])
  assert.ok(lost.message.includes(advice.not_found))
  await assert.rejects(waybill.with({ key: 'wb_test_wrong' }).call('show_me'), error => isCode(error, 'unauthorized'))
  await assert.rejects(waybill.with({ url: 'http://127.0.0.1:9', patience: 0 }).call('show_me'), error => isCode(error, 'unreachable'))
  const secret = new Waybill({ key: 'wb_secret' })
  // @ts-expect-error: it needs a turn.
  await assert.rejects(waybill.call('show_turn', { path: {} }), error => isCode(error, 'invalid'))
  // @ts-expect-error: there is no such field.
  await assert.rejects(waybill.call('start_turn', { body: { profile_name: 'echo', instruction: '', colour: 1 } }), error => isCode(error, 'invalid'))
  assert.ok(!JSON.stringify(secret).includes('wb_secret') && !(await import('node:util')).inspect(secret).includes('wb_secret'))
})

test('a turn that is stopped has no result, and waiting ends when told to', async () => {
  const waybill = await project()
  await waybill.apply(agent('idle', [{ say: 'never' }], { worker_target: 'none-here' }))
  const turn = await waybill.run('idle', 'Wait.')
  await assert.rejects(turn.wait({ timeout: 0.2 }), error => isCode(error, 'timeout'))
  const stop = new AbortController()
  setTimeout(() => stop.abort(), 300)
  await assert.rejects(all(turn.watch({ signal: stop.signal })), { name: 'AbortError' })
  await assert.rejects(turn.wait({ signal: AbortSignal.timeout(200) }), { name: 'TimeoutError' })
  await assert.rejects(all(waybill.watch({ signal: AbortSignal.timeout(200), kinds: ['step', 'task'] })), { name: 'TimeoutError' })
  assert.equal((await turn.stop('not needed')).stopped, 'ended')
  await assert.rejects(turn.result(), error => error instanceof TurnFailed && error.status === 'canceled')
})

test('a session remembers, and artifacts keep their versions', async () => {
  const waybill = await project()
  await waybill.apply(echo)
  const session = await waybill.openSession({ title: 'Bread' })
  for (const text of ['one', 'two']) await (await session.run('echo', text)).result()
  assert.equal((await all(session.messages())).length, 4)
  await session.end()
  await assert.rejects(session.run('echo', 'three'), error => isCode(error, 'session_ended'))

  for (const n of [1, 2, 3]) await waybill.putArtifact(`notes/${n}.md`, `# ${n}`)
  const second = await waybill.putArtifact('notes/1.md', new TextEncoder().encode('# 1, again'))
  assert.equal(second.version, 2)
  assert.equal(new TextDecoder().decode(await waybill.readArtifact('notes/1.md')), '# 1, again')
  assert.equal(new TextDecoder().decode(await waybill.readArtifact('notes/1.md', { version: 1 })), '# 1')
  assert.deepEqual((await all(waybill.pages('list_artifacts', { query: { prefix: 'notes/' } }))).map(one => one.path), ['notes/1.md', 'notes/2.md', 'notes/3.md'])
  assert.equal((await all(waybill.pages('list_artifacts', { query: { most: 1 } }))).length, 3)
})
