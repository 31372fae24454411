/** What the tests share: the server that runs, its API, and pages that may not break the content security policy. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { AxeBuilder } from '@axe-core/playwright'
import { type BrowserContext, test as base, expect, type Page } from '@playwright/test'
import type { components } from '../../sdk/typescript/src/schema'
import { home } from './setup'

type Schemas = components['schemas']

export { expect, home }
export const url = () => process.env.WAYBILL_URL ?? ''

/** Sends a request to the API, as a program of this machine. */
export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  // Some refuse it: a slug can be used once, a key is shown once, and the starts of a batch have their own.
  const isOnce = method === 'POST' && /\/(projects|keys|turns\/batch)$/.test(path)
  const key: Record<string, string> = isOnce ? {} : { 'idempotency-key': crypto.randomUUID() }
  const answer = await fetch(`${url()}${path}`, {
    method,
    headers: { 'content-type': 'application/json', ...key },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  })
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`)
  return (await answer.json()) as T
}

export const start = (profile: string, instruction: string, project = 'demo') =>
  call<Schemas['Started']>('POST', `/v1/projects/${project}/turns`, { profile_name: profile, instruction })

export const show = (turn: string, project = 'demo') =>
  call<Schemas['Shown']>('GET', `/v1/projects/${project}/turns/${turn}`)

/** Waits until a turn has ended. People are asked on the way by the demo's publisher: each request is approved. */
export async function ended(turn: string, project = 'demo'): Promise<Schemas['Shown']> {
  for (let tries = 0; tries < 300; tries += 1) {
    const shown = await show(turn, project)
    if (shown.turn.status !== 'open') return shown
    const asked = await call<Schemas['Page_ShownRequest']>('GET', `/v1/projects/${project}/requests`)
    for (const { tool_call_id } of asked.items) {
      await call('POST', `/v1/projects/${project}/requests/${tool_call_id}`, { decision: 'approved' })
    }
    await new Promise(done => setTimeout(done, 200))
  }
  throw new Error(`turn ${turn} has not ended`)
}

let projects = 0
/** Makes an empty project, with a key if asked. */
export const newProject = (withKey = false) => {
  projects += 1
  const slug = `test-${process.pid}-${projects}`
  return call<Schemas['CreatedProject']>('POST', '/v1/projects', { slug, with_key: withKey })
}

/** Makes a project with the demo team and its handbook. Nothing has run in it. Further profiles are added if they are given. */
export async function newTeam(...others: Record<string, unknown>[]): Promise<string> {
  const { slug } = await newProject()
  const names = ['publisher', 'editor', 'researcher', 'archivist']
  const team = await Promise.all(names.map(name => call('GET', `/v1/projects/demo/profiles/${name}`)))
  const manifests = [...team, ...others].map(profile => ({ profile }))
  await call('POST', `/v1/projects/${slug}/resources`, { manifests })
  await shelve(slug, 'handbook/en/bread.md', readFileSync(join(handbook, 'en/bread.md'), 'utf8'))
  return slug
}

const handbook = join(import.meta.dirname, '../../examples/demo/handbook')

/** Stores a document that agents can find. */
export async function shelve(project: string, path: string, body: string, external = false) {
  const query = new URLSearchParams({ path, external: String(external) })
  const headers = { 'content-type': 'text/plain' }
  const answer = await fetch(`${url()}/v1/projects/${project}/knowledge?${query}`, { method: 'PUT', headers, body })
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`)
}

export interface Ended {
  project: string
  turn: string
}

const known = () => join(home, 'run.json')

/** Remembers a run of the demo team that has ended, for the tests that only look at one. */
export const remember = (run: Ended) => writeFileSync(known(), JSON.stringify({ ...run, url: url() }))

/** Returns a run of the demo team that has ended with success. */
export async function anEndedRun(): Promise<Ended> {
  const run = existsSync(known()) ? JSON.parse(readFileSync(known(), 'utf8')) : null
  if (run?.url === url()) return run
  const { agent_turn_id: turn } = await start('publisher', 'How is bread made?')
  await ended(turn)
  const made = { project: 'demo', turn }
  remember(made)
  return made
}

/** The turns of a run by profile, in the order in which they began. */
export async function turnsOf({ project, turn }: Ended, profile: string): Promise<string[]> {
  const graph = await call<Schemas['Graph']>('GET', `/v1/projects/${project}/turns/${turn}/graph`)
  return graph.ids.filter((_, n) => graph.profiles[graph.profile[n] ?? -1] === profile)
}

/** The worker processes of `waybill dev`. Each thread has children of its own. */
export function workers(): number[] {
  const threads = `/proc/${process.env.WAYBILL_PID}/task`
  const children = readdirSync(threads).flatMap(thread =>
    readFileSync(`${threads}/${thread}/children`, 'utf8').split(' ').filter(Boolean).map(Number),
  )
  return children.filter(pid => readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').includes('worker'))
}

export const log = () => readFileSync(join(home, 'dev.log'), 'utf8')

/** Counts what the content security policy of a page refused, what it threw, and what it asked of other sites. */
export async function watch(context: BrowserContext, faults: string[], own = url()) {
  await context.addInitScript(() => {
    addEventListener('securitypolicyviolation', event =>
      console.error(`CSP ${event.violatedDirective} ${event.blockedURI}`),
    )
  })
  context.on('console', message => {
    if (message.type() === 'error' && /CSP|Content Security|TrustedType/i.test(message.text()))
      faults.push(message.text())
  })
  context.on('weberror', error => faults.push(String(error.error())))
  context.on('request', request => {
    const { protocol, hostname, origin } = new URL(request.url())
    if (/^https?:$/.test(protocol) && origin !== own && hostname !== 'localhost') faults.push(`asked ${origin}`)
  })
}

/** Every page of a test is watched, and must have no faults. */
export const test = base.extend<{ faults: string[] }>({
  faults: [
    async ({ context, baseURL }, use) => {
      const faults: string[] = []
      await watch(context, faults, baseURL)
      await use(faults)
      expect(faults).toEqual([])
    },
    { auto: true },
  ],
  // biome-ignore lint/correctness/noEmptyPattern: a fixture that needs no other
  baseURL: async ({}, use) => use(url()),
})

/** Checks a page for faults that keep people from using it. */
export async function accessible(page: Page) {
  const { violations } = await new AxeBuilder({ page })
    .withTags(['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'])
    .analyze()
  expect(violations.map(one => `${one.id}: ${one.nodes.map(node => node.html.slice(0, 200)).join(' | ')}`)).toEqual([])
}

/** Checks that a page does not scroll sideways, nor the part of it that has the view. */
export async function fits(page: Page) {
  const wide = await page.evaluate(() =>
    [document.documentElement, ...document.querySelectorAll('main, [role=tabpanel]')]
      .filter(one => one.scrollWidth > one.clientWidth)
      .map(one => `${one.tagName} ${one.scrollWidth} > ${one.clientWidth}`),
  )
  expect(wide).toEqual([])
}
