/**
 * Is it fast enough? A run of 10,000 turns, events at 500 per second, a context of a million tokens, and a page that is left alone.
 *
 * Each figure is printed as one line of JSON. `LONG=1` measures at full length. Times on a machine that others use are noisy: the best of up to
 * three tries counts, for times only.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { openSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { createInterface } from 'node:readline'
import type { Browser, BrowserContext, CDPSession, Locator, Page } from '@playwright/test'
import type { components } from '../../sdk/typescript/src/schema'
import { call, ended, expect, home, newProject, test, url, watch } from './lib'

type Schemas = components['schemas']

const isLong = process.env.LONG === '1'
const TURNS = 10_000
const program = resolve(process.env.WAYBILL_LAB ?? join(import.meta.dirname, '../../target/debug/waybill-lab'))
const pause = (ms: number) => new Promise(done => setTimeout(done, ms))

/** CI runs a development build beside other work: there a time may be twice its bar before the test fails. It is printed with its real bar. */
const slack = isLong ? 1 : 2

/** Prints a figure, and fails the test if it is above its bar. */
function report(figure: string, value: number, unit: string, bar: number) {
  const ok = value <= bar
  const most = unit === 'ms' ? bar * slack : bar
  console.log(JSON.stringify({ figure, value: Math.round(value * 10) / 10, unit, bar, ok }))
  expect.soft(value, `${figure}: ${value} ${unit}, at most ${most}`).toBeLessThanOrEqual(most)
}

/** Measures up to three times, until the figure is good enough. */
async function best(figure: string, unit: string, bar: number, measure: () => Promise<number>) {
  let value = Number.POSITIVE_INFINITY
  for (let tries = 0; tries < 3 && value > bar; tries += 1) value = Math.min(value, await measure())
  report(figure, value, unit, bar)
}

let lab: ChildProcess
let lines: AsyncIterator<string>
let large: { url: string; project: string; root: string }
/** A page that is left alone while all else is measured. */
let idle: { context: BrowserContext; page: Page; since: number; asked: string[]; heap: number }
const idleFaults: string[] = []

async function nextLine(): Promise<string> {
  const { value, done } = await lines.next()
  if (done) throw new Error(`waybill-lab has ended: see ${home}/lab.log`)
  return value
}

/** Writes events, and returns how many were written. */
async function write(rate: number, seconds: number): Promise<number> {
  lab.stdin?.write(`${rate} ${seconds}\n`)
  return Number(await nextLine())
}

test.describe.configure({ timeout: isLong ? 1_200_000 : 180_000 })

test.beforeAll(async ({ browser }) => {
  const log = openSync(join(home, 'lab.log'), 'w')
  lab = spawn(program, ['process', 'pages', '--turns', String(TURNS)], { cwd: home, stdio: ['pipe', 'pipe', log] })
  lines = createInterface({ input: lab.stdout! })[Symbol.asyncIterator]()
  large = JSON.parse(await nextLine())
  const { slug } = await newProject()
  const context = await browser.newContext()
  await watch(context, idleFaults)
  const page = await context.newPage()
  await page.goto(`${url()}/ui/${slug}/now`)
  await expect(page.getByRole('status').filter({ hasText: /^●live$/ })).toBeVisible()
  await pause(1_000)
  const asked: string[] = []
  page.on('request', request => asked.push(`${request.method()} ${request.url()}`))
  idle = { context, page, since: Date.now(), asked, heap: await heapOf(await context.newCDPSession(page)) }
})
test.afterAll(async () => {
  await idle?.context.close()
  const over = new Promise(done => lab.once('exit', done))
  lab.stdin?.end()
  await over
})

test.use({
  // biome-ignore lint/correctness/noEmptyPattern: a fixture that needs no other
  baseURL: async ({}, use) => use(large?.url ?? url()),
})

/** Bytes of the heap that are in use, without garbage. */
async function heapOf(cdp: CDPSession): Promise<number> {
  await cdp.send('HeapProfiler.collectGarbage')
  return (await cdp.send('Runtime.getHeapUsage')).usedSize
}

/** Collects the times between frames until it is asked for them. */
async function frames(page: Page): Promise<() => Promise<number[]>> {
  await page.evaluate(() => {
    const times: number[] = []
    const held = globalThis as { waybillFrames?: () => number[] }
    let isOver = false
    held.waybillFrames = () => {
      isOver = true
      return times
    }
    let before = 0
    const next = (now: number) => {
      if (before > 0) times.push(now - before)
      before = now
      if (!isOver) requestAnimationFrame(next)
    }
    requestAnimationFrame(next)
  })
  return () => page.evaluate(() => (globalThis as { waybillFrames?: () => number[] }).waybillFrames?.() ?? [])
}

const p95 = (times: number[]) => times.toSorted((a, b) => a - b)[Math.floor(times.length * 0.95)] ?? Number.NaN

const openRun = async (page: Page) => {
  await page.goto(`/ui/${large.project}/runs/${large.root}`)
  await expect(canvas(page)).toBeVisible()
  await expect(page.locator('[data-ready="true"] > div > canvas')).toBeVisible()
}
const canvas = (page: Page) => page.locator('canvas').first()

/** Drags the graph around, and returns the time of the slowest frames but for 5 %. */
async function pan(page: Page, ms: number): Promise<number> {
  const box = (await canvas(page).boundingBox())!
  const [x, y] = [box.x + box.width / 2, box.y + box.height / 2]
  await page.mouse.move(x, y)
  await page.mouse.down()
  await page.mouse.move(x + 5, y + 5)
  const times = await frames(page)
  for (let at = 0, from = Date.now(); Date.now() - from < ms; at += 0.15) {
    await page.mouse.move(x + Math.sin(at) * 200, y + Math.sin(at * 1.7) * 80)
  }
  const measured = await times()
  await page.mouse.up()
  return p95(measured)
}

/** The first page is painted soon, and its scripts are small. */
async function firstPage(browser: Browser) {
  const painted = (page: Page) =>
    page.evaluate(
      () =>
        new Promise<number>(done => {
          const look = () => {
            const found = performance.getEntriesByName('first-contentful-paint')[0]
            if (found) done(found.startTime)
            else setTimeout(look, 20)
          }
          look()
        }),
    )
  let bytes = 0
  let warm = Number.POSITIVE_INFINITY
  await best('first paint of /ui/, cold', 'ms', 800, async () => {
    const context = await browser.newContext({ baseURL: large.url })
    const page = await context.newPage()
    const cdp = await context.newCDPSession(page)
    await cdp.send('Network.enable')
    const scripts = new Map<string, number>()
    cdp.on('Network.responseReceived', ({ requestId, response }) => {
      if (response.mimeType === 'text/javascript') scripts.set(requestId, 0)
    })
    cdp.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
      if (scripts.has(requestId)) scripts.set(requestId, encodedDataLength)
    })
    await page.goto('/ui/')
    const cold = await painted(page)
    await expect(page.getByRole('heading', { name: 'Runs' })).toBeVisible()
    bytes = [...scripts.values()].reduce((sum, one) => sum + one, 0)
    for (let tries = 0; tries < 3 && warm > 250; tries += 1) {
      await page.goto('/ui/')
      warm = Math.min(warm, await painted(page))
    }
    await context.close()
    return cold
  })
  report('first paint of /ui/, warm', warm, 'ms', 250)
  report('JavaScript of the first page', bytes / 1000, 'kB', 220)
  expect(bytes).toBeGreaterThan(10_000)
}

/** A run of 10,000 turns is soon there, moves smoothly, and can be selected in. */
async function largeRun(page: Page) {
  // A development build of the server takes several times as long for the graph.
  let whole = Number.POSITIVE_INFINITY
  await best(`run of ${TURNS} turns: interactive, but for the server's work`, 'ms', 1_000, async () => {
    await openRun(page)
    const [ready, server] = await page.evaluate(() => {
      const timings = performance.getEntriesByType('resource') as PerformanceResourceTiming[]
      const graph = timings.find(one => /\/graph(\?|$)/.test(one.name))
      const ready = performance.getEntriesByName('waybill.graph.ready')[0]?.startTime
      return [ready ?? Number.NaN, graph ? graph.responseStart - graph.requestStart : Number.NaN] as const
    })
    whole = Math.min(whole, ready)
    return ready - server
  })
  report(`run of ${TURNS} turns: interactive`, whole, 'ms', 1_500)
  await expect(page.getByText('10,000 turns')).toBeVisible()
  await best(`run of ${TURNS} turns: pan, frame p95, first view`, 'ms', 33, () => pan(page, 2_000))
  await page.keyboard.press('z')
  await best(`run of ${TURNS} turns: pan, frame p95, all in view`, 'ms', 33, () => pan(page, 2_000))

  // A check that cannot fail says nothing: with 100 ms of work in each frame it must.
  await page.evaluate(() => {
    const until = performance.now() + 1_500
    const work = () => {
      const from = performance.now()
      while (performance.now() - from < 100);
      if (from < until) requestAnimationFrame(work)
    }
    requestAnimationFrame(work)
  })
  const slowed = await pan(page, 1_000)
  console.log(
    JSON.stringify({ figure: 'pan, frame p95, with 100 ms of work in each', value: slowed, unit: 'ms', least: 33 }),
  )
  expect(slowed, 'the measurement does not notice slow frames').toBeGreaterThan(33)
  await pause(1_000)

  await openRun(page)
  await best(`run of ${TURNS} turns: select`, 'ms', 100, () => select(page))
}

/** Clicks on turns of the graph, and returns how long the page took to show the slowest of three as selected. */
async function select(page: Page): Promise<number> {
  const box = (await canvas(page).boundingBox())!
  const graph = page.locator('[data-over]')
  let slowest = 0
  let clicked = 0
  for (let x = 8; x < box.width && clicked < 3; x += 12) {
    await page.mouse.move(box.x + x, box.y + box.height / 2 + clicked * 3)
    if ((await graph.getAttribute('data-over')) !== 'true') continue
    const took = page.evaluate(
      () =>
        new Promise<number>(done => {
          const before = new URLSearchParams(location.search).get('sel')
          const press = (event: PointerEvent) => {
            const look = () => {
              const now = new URLSearchParams(location.search).get('sel')
              const isShown = document.querySelector('[data-inspect="true"] aside') !== null
              // The frame after the one that has it: then it is on the screen.
              if (isShown && now !== null && now !== before)
                requestAnimationFrame(() => done(performance.now() - event.timeStamp))
              else requestAnimationFrame(look)
            }
            requestAnimationFrame(look)
          }
          addEventListener('pointerup', press, { capture: true, once: true })
          setTimeout(() => done(-1), 3_000)
        }),
    )
    await page.mouse.down()
    await page.mouse.up()
    const ms = await took
    // The same turn again.
    if (ms < 0) continue
    slowest = Math.max(slowest, ms)
    clicked += 1
    x += box.width / 4
  }
  expect(clicked, 'turns that were found in the graph').toBeGreaterThan(0)
  return slowest
}

/** 500 events per second leave it smooth, and nothing piles up. */
async function manyEvents(page: Page): Promise<number> {
  const seconds = isLong ? 60 : 6
  const cdp = await page.context().newCDPSession(page)
  await cdp.send('Network.enable')
  let received: number[] = []
  cdp.on('Network.eventSourceMessageReceived', ({ eventId }) => received.push(Number(eventId)))
  await openRun(page)
  await expect(page.getByRole('status').filter({ hasText: /^●live$/ })).toBeVisible()
  await write(500, 1)
  await pause(1_000)
  const heap = await heapOf(cdp)
  let written = 0
  received = []
  await best(`${seconds} s of 500 events per second: longest frame`, 'ms', 50, async () => {
    const times = await frames(page)
    written += await write(500, seconds)
    await pause(500)
    return Math.max(...(await times()))
  })
  await expect.poll(() => received.length, { message: 'events that the page got' }).toBeGreaterThanOrEqual(written - 1)
  await pause(500)
  // All of one stream, so their numbers have no gaps.
  const missing = received.filter((id, n) => n > 0 && id !== received[n - 1]! + 1).map(id => id - 1)
  expect.soft(missing, 'numbers of events that did not come').toEqual([])
  expect.soft(received.length, 'events that the page got').toBe(written)
  expect(written).toBeGreaterThan(400 * seconds)
  await pause(1_500)
  report('heap growth', ((await heapOf(cdp)) - heap) / 1e6, 'MB', 20)

  // With the playhead in the past, the page says how many have come since: it has seen each of them.
  await page.getByLabel('Time shown').press('Home')
  const later = await write(500, 1)
  await expect(page.getByRole('button', { name: `${later.toLocaleString('en')} new` })).toBeVisible()
  return written + later
}

/** A run is soon there and moves smoothly, however many events lie behind it. */
async function afterManyEvents(page: Page, written: number) {
  const events = isLong ? 100_000 : 6_000
  await page.goto('about:blank')
  const rate = 2_000
  const all = written + (await write(rate, Math.max(1, Math.ceil((events - written) / rate))))
  expect(all).toBeGreaterThanOrEqual(events)
  const name = `run with ${events} events behind it`
  await best(`${name}: interactive, at what is live`, 'ms', 1_500, async () => {
    await openRun(page)
    const ready = await page.evaluate(() => performance.getEntriesByName('waybill.graph.ready')[0]?.startTime)
    await expect(page.getByRole('status').filter({ hasText: /^●live$/ })).toBeVisible()
    return ready ?? Number.NaN
  })
  await page.getByRole('tab', { name: 'Timeline' }).click()
  await expect(page.getByRole('group', { name: /^Timeline of the turns/ })).toBeVisible()
  await best(`${name}: timeline, frame p95 while it scrolls`, 'ms', 33, async () => {
    const box = (await page.getByRole('group', { name: /^Timeline of the turns/ }).boundingBox())!
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2)
    const times = await frames(page)
    for (let n = 0, from = Date.now(); Date.now() - from < 2_000; n += 1) {
      await page.mouse.wheel(0, n % 40 < 20 ? 120 : -120)
    }
    return p95(await times())
  })
}

/** Makes a model call that read about so many tokens: a turn is handed what many others wrote. */
async function longCall(tokens: number) {
  const { slug } = await newProject()
  const llm_config = { provider: 'demo', model: 'demo', params: { script: [{ say: '{{query}}' }] } }
  const limits = { steps: 100, tokens: 20_000_000, seconds: 3_600 }
  const common = { worker_target: 'llm', system_prompt_template: 'You repeat.', limits }
  const memory = { budget: 2_000_000, compaction: null }
  const reads = { provider: 'demo', model: 'demo', params: { script: [{ say: 'I have read it all.' }] } }
  const profiles = [
    { ...common, name: 'writer', memory, llm_config },
    { ...common, name: 'reader', memory, llm_config: reads },
  ]
  await call('POST', `/v1/projects/${slug}/resources`, { manifests: profiles.map(profile => ({ profile })) })
  const each = isLong ? 10_000 : 5_000
  const starts = Array.from({ length: Math.ceil(tokens / each) }, (_, n) => ({
    key: `part-${n}`,
    start: { profile_name: 'writer', instruction: words(n, each) },
  }))
  const turns: string[] = []
  for (let from = 0; from < starts.length; from += 50) {
    const body = { starts: starts.slice(from, from + 50) }
    const { outcomes } = await call<{ outcomes: Schemas['Started'][] }>(
      'POST',
      `/v1/projects/${slug}/turns/batch`,
      body,
    )
    turns.push(...outcomes.map(one => one.agent_turn_id))
  }
  const boxes: string[] = []
  for (const turn of turns) boxes.push((await ended(turn, slug)).turn.output_box_id ?? '')
  const { agent_turn_id } = await call<Schemas['Started']>('POST', `/v1/projects/${slug}/turns`, {
    profile_name: 'reader',
    instruction: 'Read all of it.',
    context_box_ids: boxes,
  })
  const shown = await ended(agent_turn_id, slug)
  expect(shown.turn.status).toBe('success')
  const [step] = shown.steps
  return { project: slug, turn: agent_turn_id, step: step?.step_id ?? '', seen: step?.input_tokens ?? 0 }
}

/** Text of about so many tokens that does not repeat. */
function words(seed: number, tokens: number): string {
  const some = ['bread', 'flour', 'water', 'salt', 'yeast', 'oven', 'time', 'heat', 'dough', 'crust', 'rest', 'fold']
  let at = seed + 1
  const text: string[] = []
  for (let n = 0; n < tokens; n += 1) {
    at = (at * 48_271) % 2_147_483_647
    text.push(some[at % some.length]!)
  }
  return text.join(' ')
}

/** What the model saw is soon there, also if it saw very much. */
async function longContext(browser: Browser, faults: string[]) {
  const tokens = isLong ? 1_000_000 : 100_000
  const { project, turn, step, seen } = await longCall(tokens)
  const context = await browser.newContext()
  await watch(context, faults)
  // Notes when the parts of the page appear.
  await context.addInitScript(() => {
    const look = () => {
      if (document.querySelector('[role="toolbar"] button') && !performance.getEntriesByName('test.bands').length)
        performance.mark('test.bands')
      if (document.querySelector('[data-verified="true"]') && !performance.getEntriesByName('test.verified').length)
        performance.mark('test.verified')
      requestAnimationFrame(look)
    }
    requestAnimationFrame(look)
  })
  const page = await context.newPage()
  const at = (name: string) =>
    page.evaluate(name => performance.getEntriesByName(name)[0]?.startTime ?? Number.NaN, `test.${name}`)
  const address = `${url()}/ui/${project}/turns/${turn}/steps/${step}`
  // The scripts are in the cache of a browser that comes from another page.
  await page.goto(`${url()}/ui/${project}/turns/${turn}`)
  await page.goto(address)
  const name = `context of ${tokens} tokens`
  const appears = (part: 'bands' | 'verified', bar: number) =>
    best(`${name}: ${part}`, 'ms', bar, async () => {
      await page.goto(address)
      await expect(page.locator('[data-verified="true"]')).toBeVisible({ timeout: 30_000 })
      return at(part)
    })
  await appears('bands', 500)
  await appears('verified', 2_000)
  expect(seen, 'tokens that the model saw').toBeGreaterThan(tokens * 0.9)

  // Any message: also those whose text is not loaded yet.
  const list = page.getByRole('listbox')
  const n = Number(await list.getByRole('option').first().getAttribute('aria-setsize'))
  const places = [n - 1, Math.floor(n / 2), 2]
  await best(`${name}: a message`, 'ms', 100, () => show(page, list, places.shift() ?? 1, n))
  await context.close()
}

/** Clicks on a message, and returns how long it took until its text was there. */
async function show(page: Page, list: Locator, n: number, of: number): Promise<number> {
  await list.evaluate((box, share) => box.scrollTo(0, box.scrollHeight * share - 40), (n - 1) / of)
  const row = page.locator(`#saw-message-${n}`)
  const took = row.evaluate(
    (row, n) =>
      new Promise<number>(done => {
        const click = (event: Event) => {
          const look = () => {
            const title = document.querySelector('aside h2')?.textContent ?? ''
            const text = document.querySelector('aside [dir="auto"]')?.textContent ?? ''
            if (title.endsWith(` ${n}`) && text.length > 0)
              requestAnimationFrame(() => done(performance.now() - event.timeStamp))
            else requestAnimationFrame(look)
          }
          requestAnimationFrame(look)
        }
        row.addEventListener('click', click, { once: true })
        setTimeout(() => done(Number.POSITIVE_INFINITY), 10_000)
      }),
    n,
  )
  await row.click()
  return took
}

/** A page that is left alone asks for nothing, and does not grow. */
async function leftAlone() {
  const least = isLong ? 300_000 : 30_000
  await pause(Math.max(0, least - (Date.now() - idle.since)))
  const seconds = Math.round((Date.now() - idle.since) / 1_000)
  report(`requests of Now in ${seconds} idle seconds`, idle.asked.length, 'requests', 0)
  expect(idle.asked).toEqual([])
  const grown = (await heapOf(await idle.context.newCDPSession(idle.page))) / idle.heap - 1
  report('heap growth of Now while idle', grown * 100, '%', 5)
  await expect(idle.page.getByRole('status').filter({ hasText: /^●live$/ })).toBeVisible()
  expect(idleFaults).toEqual([])
}

// One test: a figure that falls short must not start all of it again.
test('the console is fast enough', async ({ browser, page, faults }) => {
  await test.step('the first page', () => firstPage(browser))
  await test.step('a large run', () => largeRun(page))
  const written = await test.step('many events', () => manyEvents(page))
  await test.step('a run with many events behind it', () => afterManyEvents(page, written))
  await test.step('a long context', () => longContext(browser, faults))
  await test.step('a page that is left alone', leftAlone)
})
