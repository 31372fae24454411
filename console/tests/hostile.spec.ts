/** What models, tools and users write is hostile: it must stay text, everywhere, and must not make the page slow. */
import type { Page } from '@playwright/test'
import { ended, expect, newTeam, shelve, show, start, test } from './lib'

/** Attacks, each with a word that says that it is on the page. */
const evil = [
  'bread with yeast <img src=x onerror="window.pwned = 0"> \u202egnp.exe',
  '<script>window.pwned = "script"</script>',
  '<img src=x onerror="window.pwned = 1; alert(1)">',
  '<img src="http://evil.example/pixel.png">',
  '![picture](http://evil.example/picture.png)',
  '[click](javascript:alert(2)) <a href="javascript:alert(3)">link</a> <a href="http://evil.example/">link</a>',
  '<iframe src="http://evil.example/frame"></iframe><svg onload="alert(4)"><use href="http://evil.example/a.svg#a"/></svg>',
  '<style>body { display: none } @import "http://evil.example/a.css";</style><base href="http://evil.example/">',
  '<form action="http://evil.example/"><button autofocus>send</button></form>',
  '</div></main></body><meta http-equiv="refresh" content="0; url=http://evil.example/">',
  '{{constructor.constructor("alert(5)")()}} `code`',
  'bidi \u202egnp.exe\u202c and \u2066isolate\u2069, zero\u200bwidth\u200d\ufeff, tag \u{e0041}, null\\u0000, escape \u001b[31m, soft\u00adhyphen',
].join('\n')
/** What is hidden in it. */
const hidden = ['U+202E', 'U+2066', 'U+200B', 'U+FEFF', 'U+E0041', 'U+001B', 'U+00AD']
/** None of these may be on a page as it is. */
const raw = /[\p{Cf}\u202a-\u202e]|(?![\n\t\r])\p{Cc}/u
/** A megabyte without a newline, and a part without a place to break it. It has few tokens, so that a model can be shown it. */
const line = '='.repeat(20_000) + ' responsibilities'.repeat(58_000)

const mirror = {
  name: 'mirror',
  worker_target: 'llm',
  description: 'Says what it is told.',
  system_prompt_template: 'You are a mirror. <img src=x onerror="window.pwned = 2">',
  allowed_internal_tools: ['search_knowledge'],
  knowledge: { folders: ['hostile'] },
  llm_config: {
    provider: 'demo',
    model: 'demo',
    params: {
      script: [
        { say: '{{query}}', call: { search_knowledge: { question: 'bread with yeast <b>bold</b> \u202e' } } },
        { say: '{{found}}' },
      ],
    },
  },
}

let project = ''
let turn = ''
let long = ''
let steps: string[] = []
let longSteps: string[] = []

test.beforeAll(async () => {
  project = await newTeam(mirror)
  await shelve(project, 'hostile/evil.md', `# Evil\n\n${evil}\n`, true)
  turn = (await start('mirror', evil, project)).agent_turn_id
  long = (await start('mirror', `${line}\u202e${evil}`, project)).agent_turn_id
  steps = (await ended(turn, project)).steps.map(step => step.step_id)
  // It ends when its own answer no longer fits: the first call is enough.
  await ended(long, project)
  longSteps = (await show(long, project)).steps.map(step => step.step_id)
})

/** Checks that nothing became more than text. */
async function harmless(page: Page, dialogs: string[]) {
  const found = await page.evaluate(() => ({
    pwned: (window as { pwned?: unknown }).pwned,
    made: [
      ...document.querySelectorAll(
        'img, iframe, object, embed, base, form[action], svg, style, meta[http-equiv], script:not([src]), #app script, [onerror], [onload], [srcdoc]',
      ),
    ].map(one => one.outerHTML.slice(0, 100)),
    links: [...document.querySelectorAll('a')].map(one => one.href).filter(href => !href.startsWith(location.origin)),
    text: document.body.textContent ?? '',
    attributes: [...document.querySelectorAll('[title], [aria-label]')]
      .map(one => `${one.getAttribute('title')} ${one.getAttribute('aria-label')}`)
      .join('\n'),
    title: document.title,
  }))
  expect(found.pwned).toBeUndefined()
  expect(found.made).toEqual([])
  expect(found.links).toEqual([])
  expect(found.text).not.toMatch(raw)
  expect(found.attributes).not.toMatch(raw)
  expect(found.title).not.toMatch(raw)
  expect(dialogs).toEqual([])
}

/** Notes dialogs, and the longest time for which the page could not answer. */
async function watch(page: Page) {
  const dialogs: string[] = []
  page.on('dialog', async dialog => {
    dialogs.push(dialog.message())
    await dialog.dismiss()
  })
  await page.addInitScript(() => {
    const busy = { most: 0 }
    Object.assign(window, { busy })
    new PerformanceObserver(list => {
      for (const one of list.getEntries()) busy.most = Math.max(busy.most, one.duration)
    }).observe({ type: 'longtask', buffered: true })
  })
  return dialogs
}

const mostBusy = (page: Page) => page.evaluate(() => (window as unknown as { busy: { most: number } }).busy.most)

test('in the runs, a run, its table and its turn it is text', async ({ page }) => {
  const dialogs = await watch(page)
  await page.goto(`/ui/${project}/runs`)
  await expect(page.getByRole('link', { name: /^bread with yeast/ })).toBeVisible()
  await harmless(page, dialogs)

  for (const view of ['graph', 'table']) {
    await page.goto(`/ui/${project}/runs/${turn}?view=${view}&sel=${turn}`)
    await expect(page.getByRole('heading', { level: 1 })).toContainText('<img src=x onerror=')
    await expect(page.getByRole('link', { name: 'What the model saw last' })).toBeVisible()
    await harmless(page, dialogs)
  }

  await page.goto(`/ui/${project}/turns/${turn}`)
  const transcript = page.getByRole('region', { name: 'Transcript' })
  await expect(transcript).toContainText('<script>window.pwned')
  await expect(transcript).toContainText('![picture](http://evil.example/picture.png)')
  for (const code of hidden) await expect(transcript.getByTitle(`hidden character ${code}`).first()).toBeVisible()
  await harmless(page, dialogs)
  // The result of the tool came from outside, and says so.
  await transcript.evaluate(one => one.scrollTo(0, one.scrollHeight))
  await expect(transcript.getByText('from outside').first()).toBeVisible()
  await harmless(page, dialogs)
})

test('in what the model saw it is text: messages, as sent, tools and the receipt', async ({ page }) => {
  const dialogs = await watch(page)
  const saw = `/ui/${project}/turns/${turn}/steps/${steps.at(-1)}`
  await page.goto(`${saw}?message=3`)
  const message = page.getByRole('complementary', { name: 'The message' })
  await expect(message).toContainText('<iframe src="http://evil.example/frame">')
  for (const code of hidden) await expect(message.getByTitle(`hidden character ${code}`).first()).toBeVisible()
  await harmless(page, dialogs)
  await page.keyboard.press('End')
  for (const tab of ['sent', 'tools', 'left', 'receipt']) {
    await page.goto(`${saw}?tab=${tab}`)
    await expect(page.getByRole('button', { name: /verified in this browser list of cards/ })).toBeVisible()
    if (tab === 'sent') {
      await page.getByRole('searchbox', { name: 'Search the request' }).fill('evil.example/frame')
      await expect(page.getByText(/^1 of \d+$/)).toBeVisible()
      await expect(page.getByRole('region', { name: 'The request, byte for byte' })).toContainText('U+202E')
    }
    await harmless(page, dialogs)
  }
})

test('a line of a megabyte does not stop a page', async ({ page }) => {
  const dialogs = await watch(page)
  const views: [string, RegExp][] = [
    ['runs', /=====/],
    [`runs/${long}?sel=${long}`, /=====/],
    [`turns/${long}`, /[\d,]{7,} characters are not shown/],
    [`turns/${long}/steps/${longSteps[0]}?message=3`, /[\d,]{7,} characters are not shown/],
    [`turns/${long}/steps/${longSteps[0]}?tab=sent`, /1,?0\d\d.* rows|MB/],
  ]
  for (const [path, sign] of views) {
    await page.goto(`/ui/${project}/${path}`)
    await expect(page.getByRole('main'), path).toContainText(sign)
    // The page answers a key at once.
    const begun = Date.now()
    await page.keyboard.press('?')
    await expect(page.getByRole('dialog', { name: 'Keys' }), path).toBeVisible()
    expect(Date.now() - begun, path).toBeLessThan(2_000)
    expect(await mostBusy(page), `${path}: longest task`).toBeLessThan(2_000)
    await page.keyboard.press('Escape')
    await harmless(page, dialogs)
  }
})

test('a text of 4 MB that almost repeats itself does not stop a page', async ({ page }) => {
  const dialogs = await watch(page)
  const text = `${'='.repeat(4 << 20)}\n"end"`
  // The server says so, and the bytes as well.
  await page.route('**/context/messages?*', async route => {
    const response = await route.fetch()
    const answer = await response.json()
    answer.items[2].content = text
    await route.fulfill({ response, json: answer })
  })
  await page.route('**/context/request?*', async route => {
    const response = await route.fetch()
    const answer = await response.json()
    answer.messages[2].content = text
    await route.fulfill({ response, body: JSON.stringify(answer) })
  })
  await page.goto(`/ui/${project}/turns/${turn}/steps/${steps[0]}?message=3`)
  const message = page.getByRole('complementary', { name: 'The message' })
  await expect(message).toContainText('This message stands in the request at its place')
  await expect(message).toContainText('could not be verified')
  expect(await mostBusy(page)).toBeLessThan(2_000)
  await page.keyboard.press('r')
  await page.getByRole('searchbox', { name: 'Search the request' }).fill(`${'='.repeat(80_000)}"`)
  await expect(page.getByText('not found')).toBeVisible()
  expect(await mostBusy(page)).toBeLessThan(2_000)
  await harmless(page, dialogs)
})
