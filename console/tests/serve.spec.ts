/** `waybill serve` behind a proxy that speaks TLS: logins, what each key sees, and what happens when it ends. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { openSync, readFileSync } from 'node:fs'
import { request as forward } from 'node:http'
import { createServer, type Server } from 'node:https'
import { type AddressInfo, createServer as listen } from 'node:net'
import { join, resolve } from 'node:path'
import type { Browser, Page } from '@playwright/test'
import type { components } from '../../sdk/typescript/src/schema'
import { accessible, call, ended, expect, home, newProject, start, test, watch } from './lib'

type Schemas = components['schemas']
type Scope = Schemas['Scope']

const program = resolve(process.env.WAYBILL ?? join(import.meta.dirname, '../../target/debug/waybill'))
let server: ChildProcess
let proxy: Server
let plain = ''
let secure = ''

const freePort = () =>
  new Promise<number>(done => {
    const one = listen().listen(0, '127.0.0.1', () => {
      const { port } = one.address() as AddressInfo
      one.close(() => done(port))
    })
  })

/** Serves the database of the `waybill dev` of these tests to callers with keys. */
async function serve(...options: string[]): Promise<[ChildProcess, string]> {
  const database = /^database_url = (".*")$/m.exec(readFileSync(join(home, 'data/waybill.toml'), 'utf8'))?.[1]
  const address = `127.0.0.1:${await freePort()}`
  const log = openSync(join(home, 'serve.log'), 'a')
  const child = spawn(program, ['serve', '--listen', address, '--grace', '1', ...options], {
    cwd: home,
    stdio: ['ignore', log, log],
    env: { ...process.env, WAYBILL_DATABASE_URL: JSON.parse(database ?? '""') },
  })
  for (let tries = 0; tries < 150; tries += 1) {
    if (child.exitCode !== null) break
    if (
      await fetch(`http://${address}/health`).then(
        answer => answer.ok,
        () => false,
      )
    )
      return [child, `http://${address}`]
    await new Promise(done => setTimeout(done, 100))
  }
  throw new Error(`waybill serve did not start: see ${home}/serve.log`)
}

async function end(child: ChildProcess) {
  const ended = new Promise(done => child.once('exit', done))
  child.kill('SIGINT')
  await ended
}

/** A proxy as an operator would have it: it speaks TLS, and passes on all else as it is. */
async function speakTls(to: string): Promise<[Server, string]> {
  const [key, certificate] = [join(home, 'key.pem'), join(home, 'certificate.pem')]
  const options = ['-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']
  const names = ['-subj', '/CN=localhost', '-addext', 'subjectAltName=DNS:localhost']
  execFileSync('openssl', ['req', ...options, ...names, '-keyout', key, '-out', certificate], { stdio: 'ignore' })
  const { hostname, port } = new URL(to)
  const made = createServer({ key: readFileSync(key), cert: readFileSync(certificate) }, (asked, answer) => {
    const { method, url: path, headers } = asked
    const passed = forward({ hostname, port, method, path, headers }, said => {
      answer.writeHead(said.statusCode ?? 502, said.rawHeaders)
      said.pipe(answer)
    })
    passed.on('error', () => answer.destroy())
    answer.on('close', () => passed.destroy())
    asked.pipe(passed)
  })
  await new Promise<void>(done => made.listen(0, '127.0.0.1', done))
  return [made, `https://localhost:${(made.address() as AddressInfo).port}`]
}

test.use({
  ignoreHTTPSErrors: true,
  // biome-ignore lint/correctness/noEmptyPattern: a fixture that needs no other
  baseURL: async ({}, use) => use(secure),
})

test.beforeAll(async () => {
  ;[server, plain] = await serve('--behind-tls')
  ;[proxy, secure] = await speakTls(plain)
})
test.afterAll(async () => {
  proxy?.closeAllConnections()
  proxy?.close()
  if (server) await end(server)
})

const makeKey = (name: string, scope: Scope, project = 'demo') =>
  call<Schemas['CreatedKey']>('POST', `/v1/projects/${project}/keys`, { name: `${name}-${process.pid}`, scope })
const revoke = (key: Schemas['CreatedKey'], project = 'demo') =>
  call('DELETE', `/v1/projects/${project}/keys/${key.key_id}`)

async function logIn(page: Page, key: string, path = '/ui/') {
  await page.goto(path)
  await page.getByLabel('API key').fill(key)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
  await expect(page.getByLabel('Project')).toBeVisible()
}

/** Another browser, with its own cookies. */
async function another(browser: Browser, faults: string[]): Promise<Page> {
  const context = await browser.newContext({ ignoreHTTPSErrors: true, baseURL: secure })
  await watch(context, faults, secure)
  return context.newPage()
}

const live = (page: Page) => page.getByRole('status').filter({ hasText: /^●live$/ })

test('a key logs in, a wrong one says what is wrong, and nothing but a cookie that pages cannot read remains', async ({
  page,
  context,
}) => {
  const key = await makeKey('login', 'reader')
  await page.goto('/ui/demo/now')
  await expect(page).toHaveURL(/\/ui\/welcome\?next=/)
  await accessible(page)
  const logInButton = page.getByRole('button', { name: 'Log in', exact: true })
  await page.getByLabel('API key').fill('secret')
  await logInButton.click()
  await expect(page.getByRole('alert')).toContainText('The server does not accept this key. It says:')
  await expect(page.getByRole('alert')).toContainText(/wb_/)
  // The form is right, the check at its end is not.
  await page.getByLabel('API key').fill(`${key.key.slice(0, -1)}${key.key.endsWith('A') ? 'B' : 'A'}`)
  await logInButton.click()
  await expect(page.getByRole('alert')).toBeVisible()
  await page.getByLabel('API key').fill(key.key)
  await logInButton.click()
  // The address that was asked for first.
  await expect(page).toHaveURL(/\/ui\/demo\/now$/)
  await expect(page.getByText(`key:${key.name}`)).toBeVisible()

  const cookies = await context.cookies()
  expect(
    cookies.map(({ name, httpOnly, secure, sameSite, path }) => ({ name, httpOnly, secure, sameSite, path })),
  ).toEqual([{ name: '__Host-waybill', httpOnly: true, secure: true, sameSite: 'Strict', path: '/' }])
  const hours = ((cookies[0]?.expires ?? 0) - Date.now() / 1000) / 3600
  expect(hours).toBeGreaterThan(11)
  expect(hours).toBeLessThanOrEqual(12)
  await page.getByRole('button', { name: 'Dark theme' }).click()
  await page.getByRole('button', { name: '中文' }).click()
  const kept = await page.evaluate(async () => ({
    local: Object.keys(localStorage).sort(),
    session: Object.keys(sessionStorage),
    cookie: document.cookie,
    databases: await indexedDB.databases(),
    caches: await caches.keys(),
  }))
  expect(kept).toEqual({
    local: ['waybill.language', 'waybill.theme'],
    session: [],
    cookie: '',
    databases: [],
    caches: [],
  })
  expect(await page.content()).not.toContain(key.key)
})

test('the page has its policy, and no other site may show it or make requests', async ({ page, browser }) => {
  const answer = await page.goto('/ui/')
  const headers = answer?.headers() ?? {}
  expect(headers['content-security-policy']).toContain("default-src 'none'; script-src 'self'; style-src 'self'")
  expect(headers['content-security-policy']).toContain("frame-ancestors 'none'; require-trusted-types-for 'script'")
  expect(headers['x-content-type-options']).toBe('nosniff')
  expect(headers['referrer-policy']).toBe('no-referrer')
  expect(headers['cache-control']).toBe('no-cache')
  // What the policy forbids does not happen. This page is not watched: it breaks the policy.
  const bare = await browser.newPage({ ignoreHTTPSErrors: true })
  await bare.goto(`${secure}/ui/`)
  const refused = await bare.evaluate(async () => {
    const said: string[] = []
    try {
      document.body.innerHTML = '<b>x</b>'
    } catch (error) {
      said.push((error as Error).name)
    }
    await fetch('https://example.com/').catch(error => said.push((error as Error).name))
    return said
  })
  expect(refused).toEqual(['TypeError', 'TypeError'])
  await bare.close()
  const { key } = await makeKey('crossing', 'operator')
  await logIn(page, key)
  const foreign = await page.request.post('/v1/projects/demo/turns', {
    headers: { origin: 'https://evil.example', 'sec-fetch-site': 'cross-site' },
    data: { profile_name: 'editor', instruction: 'Steal' },
  })
  expect(foreign.status()).toBe(403)
  expect((await foreign.json()).code).toBe('cross_site')
})

test('a run that another program starts appears by itself, through the proxy', async ({ page }) => {
  const { key } = await makeKey('watching', 'operator')
  await logIn(page, key, '/ui/demo/runs')
  await expect(live(page)).toBeVisible()
  const instruction = `What is seen live ${Date.now()}?`
  const { agent_turn_id } = await start('archivist', instruction)
  const fresh = page.getByRole('button', { name: /new/ })
  const row = page.getByRole('row').filter({ hasText: instruction })
  await expect(fresh.or(row)).toBeVisible()
  if (await fresh.isVisible()) await fresh.click()
  await expect(row).toBeVisible()
  await ended(agent_turn_id)
  await expect(row).toContainText('success')
})

test('two keys in two browsers each see the project of their own', async ({ page, browser, faults }) => {
  const { slug: theirs } = await newProject()
  const name = 'echo'
  const llm_config = { provider: 'demo', model: 'demo', params: { script: [{ say: 'You said {{query}}' }] } }
  const profile = { name, worker_target: 'llm', system_prompt_template: 'You repeat.', llm_config }
  await call('POST', `/v1/projects/${theirs}/resources`, { manifests: [{ profile }] })
  const [own, other] = [
    await start('archivist', 'Only demo sees this'),
    await start(name, 'Only they see this', theirs),
  ]
  const keys = [await makeKey('one', 'reader'), await makeKey('two', 'reader', theirs)]
  const second = await another(browser, faults)
  await Promise.all([logIn(page, keys[0]!.key), logIn(second, keys[1]!.key)])
  await expect(page).toHaveURL(/\/ui\/demo\/runs$/)
  await expect(second).toHaveURL(new RegExp(`/ui/${theirs}/runs$`))
  await expect(page.getByText('Only demo sees this').first()).toBeVisible()
  await expect(second.getByText('Only they see this')).toBeVisible()
  await expect(page.getByText('Only they see this')).toHaveCount(0)
  await expect(second.getByText('Only demo sees this')).toHaveCount(0)
  await expect(second.getByLabel('Project').locator('option')).toHaveText([theirs])
  // A link into the other project leads nowhere, and does not say whether it exists.
  for (const path of [
    `/ui/demo/runs/${own.agent_turn_id}`,
    '/ui/demo/now',
    '/ui/demo/runs',
    '/ui/no-such-project/runs',
  ]) {
    await second.goto(path)
    const said = second.getByRole('main').getByRole('alert').first()
    await expect(said).toContainText(/may not see this|does not exist/)
  }
  await page.goto(`/ui/${theirs}/runs/${other.agent_turn_id}`)
  await expect(page.getByRole('main').getByRole('alert').first()).toContainText(/may not see this|does not exist/)
  await second.context().close()
})

test('two projects in two tabs of one browser: the login is that of the last key, and the other tab says so', async ({
  page,
  context,
}) => {
  const { slug: theirs } = await newProject()
  const { agent_turn_id } = await start('archivist', 'Only demo has this')
  const keys = [await makeKey('tab-one', 'reader'), await makeKey('tab-two', 'reader', theirs)]
  await logIn(page, keys[0]!.key, '/ui/demo/runs')
  await expect(page.getByText('Only demo has this').first()).toBeVisible()
  const second = await context.newPage()
  const other = (page: Page) => page.getByRole('alert').filter({ hasText: 'All its tabs share one login' })
  await second.goto(`/ui/${theirs}/runs`)
  await expect(other(second)).toContainText(`logged in as key:${keys[0]!.name}, which reaches only demo`)
  await accessible(second)
  await second.getByRole('link', { name: 'Log in with another key' }).click()
  await second.getByLabel('API key').fill(keys[1]!.key)
  await second.getByRole('button', { name: 'Log in', exact: true }).click()
  await expect(second).toHaveURL(new RegExp(`/ui/${theirs}/runs$`))
  await expect(second.getByRole('heading', { name: 'No runs yet' })).toBeVisible()
  await expect(other(second)).toHaveCount(0)
  // What the first tab asks for now, it asks with the second key: it is told nothing of the project, and whose login it is.
  await page.getByRole('link', { name: 'Only demo has this' }).first().click()
  await expect(other(page)).toContainText(`logged in as key:${keys[1]!.name}, which reaches only ${theirs}`)
  await expect(page.getByRole('main')).not.toContainText('archivist')
  await page.getByRole('link', { name: 'Log in with another key' }).click()
  await page.getByLabel('API key').fill(keys[0]!.key)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
  await expect(page).toHaveURL(new RegExp(agent_turn_id))
  await expect(page.getByRole('heading', { name: 'Only demo has this' })).toBeVisible()
})

test('when its key is revoked, an open page leads to the login and says why', async ({ page }) => {
  const key = await makeKey('leaving', 'reader')
  await logIn(page, key.key, '/ui/demo/runs')
  await expect(live(page)).toBeVisible()
  await revoke(key)
  await expect(page).toHaveURL(/\/ui\/welcome/, { timeout: 12_000 })
  await expect(page.getByText('Your login has ended')).toBeVisible()
  await accessible(page)
  await page.getByLabel('API key').fill(key.key)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
  await expect(page.getByRole('alert')).toContainText('does not accept this key')
  // With another key it goes on where it was.
  await page.getByLabel('API key').fill((await makeKey('coming', 'reader')).key)
  await page.getByRole('button', { name: 'Log in', exact: true }).click()
  await expect(page).toHaveURL(/\/ui\/demo\/runs$/)
})

test('logging out in one tab logs out all tabs of the browser', async ({ page, context }) => {
  const { key } = await makeKey('tabs', 'reader')
  await logIn(page, key, '/ui/demo/runs')
  const other = await context.newPage()
  await other.goto('/ui/demo/now')
  await expect(live(other)).toBeVisible()
  await page.getByRole('button', { name: 'Log out' }).click()
  await expect(page.getByText('You are logged out')).toBeVisible()
  await expect(other).toHaveURL(/\/ui\/welcome/, { timeout: 12_000 })
  expect(await context.cookies()).toEqual([])
  await page.goto('/ui/demo/runs')
  await expect(page).toHaveURL(/\/ui\/welcome/)
})

test('a page of an older version says that the server was upgraded, and loads again', async ({ page }) => {
  const { key } = await makeKey('upgrade', 'reader')
  const { agent_turn_id } = await start('archivist', 'What is an upgrade?')
  await logIn(page, key, '/ui/demo/runs')
  // The newer server no longer has the part of the page that shows a run.
  await page.route(/\/ui\/assets\/run-[^/]*\.js$/, route => route.fulfill({ status: 404, body: 'gone' }))
  await page.getByRole('link', { name: 'What is an upgrade?' }).first().click()
  await expect(page.getByRole('alert')).toContainText('The server was upgraded')
  await accessible(page)
  await page.unroute(/\/ui\/assets\/run-[^/]*\.js$/)
  await page.getByRole('button', { name: 'Load again' }).click()
  await expect(page).toHaveURL(new RegExp(agent_turn_id))
  await expect(page.getByRole('heading', { name: 'What is an upgrade?' })).toBeVisible()
})

test('a reader can read and has no buttons that change anything', async ({ page }) => {
  const { agent_turn_id } = await start('publisher', 'What may a reader do?')
  const { key } = await makeKey('reading', 'reader')
  await logIn(page, key, '/ui/demo/runs')
  await expect(page.getByRole('row').filter({ hasText: 'What may a reader do?' }).first()).toBeVisible()
  const changing = page.getByRole('button', { name: /^(Start|Stop|Approve|Reject)/ })
  await expect(page.getByRole('checkbox')).toHaveCount(0)
  await expect(changing).toHaveCount(0)
  await page.goto(`/ui/demo/runs/${agent_turn_id}`)
  await expect(page.getByRole('heading', { name: 'What may a reader do?' })).toBeVisible()
  await expect(changing).toHaveCount(0)
  await page.goto(`/ui/demo/turns/${agent_turn_id}`)
  await expect(page.getByText('Your key may not decide this.')).toBeVisible({ timeout: 20_000 })
  await expect(changing).toHaveCount(0)
  await page.goto('/ui/demo/now')
  await expect(page.getByRole('heading', { name: 'Now' })).toBeVisible()
  await expect(changing).toHaveCount(0)
  // The server refuses too.
  const answer = await page.evaluate(async turn => {
    const body = JSON.stringify({ reason: 'because' })
    const headers = { 'content-type': 'application/json', 'idempotency-key': crypto.randomUUID() }
    return (await fetch(`/v1/projects/demo/turns/${turn}/stop`, { method: 'POST', headers, body })).status
  }, agent_turn_id)
  expect(answer).toBe(403)
  await call('POST', `/v1/projects/demo/turns/${agent_turn_id}/stop`, { reason: 'the test is over' })
})

test('an auditor sees which turns ran, and is told what the key may not see', async ({ page }) => {
  const { agent_turn_id } = await start('archivist', 'What does an auditor see?')
  await ended(agent_turn_id)
  const { key } = await makeKey('audit', 'auditor')
  await logIn(page, key, '/ui/demo/runs')
  await expect(page.getByRole('row').filter({ hasText: 'archivist' }).first()).toBeVisible()
  await expect(page.getByRole('status').filter({ hasText: 'not live' })).toBeVisible()
  await expect(page.getByText('The connection to the server was lost')).toHaveCount(0)
  await page.goto(`/ui/demo/turns/${agent_turn_id}`)
  const alert = page.getByRole('alert').first()
  await expect(alert).toContainText('Your key may not see this')
  await expect(alert).toContainText('auditor')
  await accessible(page)
})

test('without the console its paths do not exist, and the API is there', async () => {
  const [child, address] = await serve('--no-console')
  try {
    for (const path of ['/ui/', '/ui/demo/runs']) {
      expect((await fetch(`${address}${path}`, { redirect: 'manual' })).status).toBe(404)
    }
    expect((await fetch(`${address}/openapi.json`)).status).toBe(200)
  } finally {
    await end(child)
  }
})
