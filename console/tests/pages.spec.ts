/** Every view in every state: as it should be, in both themes and languages, on a narrow screen, by keys alone; empty, loading, failed, gone, refused, cut off. */
import type { Locator, Page } from '@playwright/test'
import { accessible, anEndedRun, call, expect, fits, newProject, show, start, test, turnsOf } from './lib'

interface View {
  name: string
  /** The address below the project. */
  path: string
  /** What is there once the view is complete. */
  ready(page: Page): Locator
  /** The answer without which there is nothing to show. */
  answer: RegExp
  /** Words that must be there in Chinese. */
  chinese: string[]
}

let project = ''
let views: View[] = []
const view = (name: string): View => {
  const found = views.find(one => one.name === name)
  if (!found) throw new Error(`no view ${name}`)
  return found
}
const missing = '01a1ee2e-43dc-72b1-b81f-000000000000'

test.beforeAll(async () => {
  const run = await anEndedRun()
  project = run.project
  const [researcher = ''] = await turnsOf(run, 'researcher')
  const { steps } = await show(researcher, project)
  const one = `/runs/${run.turn}`
  const saw = `/turns/${researcher}/steps/${steps.at(-1)?.step_id}`
  const tab = (name: string, ready: View['ready'], chinese: string): View => ({
    name,
    path: `${saw}?tab=${name}`,
    ready,
    answer: /\/v1\/.*\/context\?/,
    chinese: [chinese, '卡片清单'],
  })
  const graph = /\/v1\/.*\/graph/
  views = [
    {
      name: 'now',
      path: '/now',
      ready: page => page.getByText('No person is asked for anything.').or(page.getByText('没有需要人决定的事。')),
      answer: /\/v1\/.*\/now$/,
      chinese: ['现在', '按等待对象', '需要你', '最近一小时'],
    },
    {
      name: 'runs',
      path: '/runs',
      ready: page => page.getByRole('link', { name: 'How is bread made?' }).first(),
      answer: /\/v1\/.*\/turns\?/,
      chinese: ['运行', '指令', '状态', '用时', '费用'],
    },
    {
      name: 'graph',
      path: one,
      ready: page => page.getByRole('group', { name: /^(Graph of the turns|轮次的图)/ }),
      answer: graph,
      chinese: ['图', '时间线', '表格', '折叠'],
    },
    {
      name: 'timeline',
      path: `${one}?view=timeline`,
      ready: page => page.getByRole('group', { name: /^(Timeline of the turns|轮次的时间线)/ }),
      answer: graph,
      chinese: ['图', '时间线', '表格', '工作进程丢失'],
    },
    {
      name: 'table',
      path: `${one}?view=table`,
      ready: page => page.getByRole('row', { level: 4 }).first(),
      answer: graph,
      chinese: ['轮次', '状态', '由谁发起'],
    },
    {
      name: 'turn',
      path: `/turns/${researcher}`,
      ready: page => page.getByText('Bread needs four ingredients').first(),
      answer: new RegExp(`/v1/.*/turns/${researcher}$`),
      chinese: ['问题', '第 1 步', '模型看到了什么', '整次运行'],
    },
    tab('messages', page => page.getByRole('listbox').getByRole('option').first(), '来源'),
    tab('sent', page => page.getByRole('region', { name: /^(The request, byte for byte|请求)/ }), '原始请求'),
    tab('tools', page => page.getByRole('heading', { name: 'ask_expert' }), '工具 1'),
    tab('left', page => page.getByRole('tabpanel').locator('li, h2').first(), '未展示'),
    tab('receipt', page => page.getByText('"request_hash"'), '收据'),
  ]
})

const open = async (page: Page, { path, ready }: View, search = '') => {
  await page.goto(`/ui/${project}${path}${search && `${path.includes('?') ? '&' : '?'}${search}`}`)
  await expect(ready(page)).toBeVisible()
}

/** What the console itself says on a page: names of things to read and to use. Commands and content are not its words. */
const labels = (page: Page): Promise<string[]> =>
  page.evaluate(() => {
    const found = [
      ...document.querySelectorAll('h1, h2, h3, th, dt, label, button, summary, [role=tab], [role=columnheader]'),
    ]
    const said = found.filter(one => !one.querySelector('code') && !one.closest('code, article'))
    const named = [...document.querySelectorAll('[aria-label], [title]')].flatMap(one => [
      one.getAttribute('aria-label') ?? '',
      one.getAttribute('title') ?? '',
    ])
    return [...said.map(one => one.textContent ?? ''), ...named].filter(text => /[a-z]{2,} [a-z]{2,}/i.test(text))
  })

/** Goes through views that are one after another on the same page. */
async function everyLook(page: Page, all: View[], next: (view: View) => Promise<void>) {
  const [first] = all
  if (!first) return
  await page.emulateMedia({ colorScheme: 'light' })
  await open(page, first)
  const english: string[] = []
  for (const one of all) {
    await next(one)
    await accessible(page)
    english.push(...(await labels(page)))
  }
  await page.getByRole('button', { name: 'Dark theme' }).click()
  await expect(page.locator('html')).toHaveAttribute('data-theme', 'dark')
  await page.setViewportSize({ width: 360, height: 740 })
  for (const one of all.toReversed()) {
    await next(one)
    await fits(page)
    await accessible(page)
  }
  await open(page, first, 'lang=zh')
  await expect(page.locator('html')).toHaveAttribute('lang', 'zh-CN')
  for (const one of all) {
    await next(one)
    await fits(page)
    for (const word of one.chinese) await expect(page.locator('body')).toContainText(word)
    // Names of providers, models and profiles are the same in both.
    const content = /How is bread made|waybill (run|turn|context)|^demo demo$|^profile researcher/
    const same = (await labels(page)).filter(text => english.includes(text) && !content.test(text))
    expect(same, one.name).toEqual([])
  }
}

for (const name of ['now', 'runs', 'turn']) {
  test(`${name}: light, dark, narrow, Chinese`, async ({ page }) => {
    await everyLook(page, [view(name)], one => expect(one.ready(page)).toBeVisible())
  })
}

test('a run, as graph, timeline and table: light, dark, narrow, Chinese', async ({ page }) => {
  await everyLook(page, ['graph', 'timeline', 'table'].map(view), async one => {
    const at = ['graph', 'timeline', 'table'].indexOf(one.name)
    await page.getByRole('tab').nth(at).click()
    await expect(one.ready(page)).toBeVisible()
  })
})

const tabs = ['messages', 'sent', 'tools', 'left', 'receipt']

test('what the model saw, every tab: light, dark, narrow, Chinese', async ({ page }) => {
  await everyLook(page, tabs.map(view), async one => {
    await page.getByRole('tab').nth(tabs.indexOf(one.name)).click()
    await expect(one.ready(page)).toBeVisible()
  })
})

test('welcome: light, dark, narrow, Chinese', async ({ page }) => {
  await page.emulateMedia({ colorScheme: 'light' })
  await page.goto('/ui/welcome')
  await expect(page.getByLabel('API key')).toBeVisible()
  await accessible(page)
  await page.goto('/ui/welcome?theme=dark')
  await expect(page.getByLabel('API key')).toBeVisible()
  await accessible(page)
  await page.setViewportSize({ width: 360, height: 740 })
  await page.goto('/ui/welcome?lang=zh')
  await expect(page.getByLabel('API 密钥')).toBeVisible()
  await expect(page.getByRole('button', { name: '登录' })).toBeVisible()
  await fits(page)
})

/** Presses a key until something has the focus, as a person does who has no mouse. */
async function tabTo(page: Page, goal: Locator, most = 40) {
  await expect(goal).toBeVisible()
  for (let n = 0; n < most; n += 1) {
    await page.keyboard.press('Tab')
    if (await goal.evaluate(one => one === document.activeElement)) return
  }
  throw new Error(`${most} tabs do not reach ${goal}`)
}

test('keys alone lead from the runs to what the model saw', async ({ page }) => {
  await open(page, view('runs'))
  await page.keyboard.press('Tab')
  await expect(page.getByRole('link', { name: 'Skip to the content' })).toBeFocused()
  await page.keyboard.press('Enter')
  await tabTo(page, page.getByRole('main').getByRole('link', { name: 'How is bread made?' }).first())
  await page.keyboard.press('Enter')

  const graph = page.getByRole('group', { name: /^Graph of the turns/ })
  await tabTo(page, graph)
  await page.keyboard.press('ArrowRight')
  await expect(graph).toHaveAccessibleDescription(/^publisher: success/)
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowDown')
  await expect(graph).toHaveAccessibleDescription(/^researcher 2: success/)
  await page.keyboard.press('Enter')

  await expect(page).toHaveURL(/\/turns\//)
  await tabTo(
    page,
    page.getByRole('region', { name: 'Transcript' }).getByRole('link', { name: 'What the model saw' }).last(),
  )
  await page.keyboard.press('Enter')

  const list = page.getByRole('listbox', { name: 'Messages' })
  await tabTo(page, list)
  await page.keyboard.press('End')
  await expect(list.getByRole('option', { selected: true })).toContainText('tool.result')
  await page.keyboard.press('r')
  await expect(page.getByRole('tab', { name: 'As sent' })).toHaveAttribute('aria-selected', 'true')
  await page.getByRole('tab', { name: 'As sent' }).focus()
  await page.keyboard.press('ArrowRight')
  await expect(page.getByRole('tab', { name: /^Tools/ })).toBeFocused()
  await expect(page.getByRole('tab', { name: /^Tools/ })).toHaveAttribute('aria-selected', 'true')
})

test('keys alone work in the timeline, the table, Now, and the login', async ({ page }) => {
  await open(page, view('timeline'))
  await tabTo(page, view('timeline').ready(page))
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowDown')
  await expect(page.getByRole('complementary', { name: 'Selected turn' })).toContainText('editor')

  await open(page, view('table'))
  const table = page.getByRole('treegrid', { name: 'Turns of this run' })
  await tabTo(page, table)
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowRight')
  await expect(table.getByRole('row', { selected: true })).toContainText('editor')
  await page.keyboard.press('ArrowLeft')
  await expect(table.getByRole('row', { level: 3 })).toHaveCount(0)
  await page.keyboard.press('ArrowRight')
  await expect(table.getByRole('row', { level: 3 })).toHaveCount(3)
  await page.keyboard.press('Enter')
  await expect(page).toHaveURL(/\/turns\//)

  await page.keyboard.press('g')
  await page.keyboard.press('n')
  await expect(page.getByRole('heading', { level: 1, name: 'Now' })).toBeVisible()
  const starts = page.getByRole('main').getByRole('button', { name: 'Start', exact: true })
  await tabTo(page, starts)
  await page.keyboard.press('Enter')
  await expect(page.getByRole('dialog', { name: 'Start a run' })).toBeVisible()
  await accessible(page)
  await page.keyboard.press('Escape')
  await expect(page.getByRole('dialog')).toHaveCount(0)
  await page.keyboard.press('?')
  await expect(page.getByRole('dialog', { name: 'Keys' })).toContainText('open a row of what is waited for')
  await page.keyboard.press('Escape')

  await page.goto('/ui/welcome')
  await tabTo(page, page.getByLabel('API key'))
  await page.keyboard.type('wb_not_a_key')
  await page.keyboard.press('Enter')
  await expect(page.getByRole('alert')).toContainText('The server does not accept this key.')
})

test('an empty project says what would be here, and what to do', async ({ page }) => {
  const { slug } = await newProject()
  await page.goto(`/ui/${slug}/runs`)
  await expect(page.getByRole('heading', { name: 'No runs yet' })).toBeVisible()
  await accessible(page)
  await page.getByRole('main').getByRole('button', { name: 'Start', exact: true }).click()
  await expect(page.getByRole('dialog')).toContainText('This project has no profile yet.')
  await page.keyboard.press('Escape')
  await page
    .getByRole('textbox', { name: 'Filter' })
    .or(page.getByRole('combobox', { name: 'Filter' }))
    .fill('status:failed')
  await expect(page.getByRole('heading', { name: 'No run passes this filter' })).toBeVisible()
  await page.goto(`/ui/${slug}/now`)
  await expect(page.getByRole('heading', { name: 'Nothing runs. Start one' })).toBeVisible()
  await accessible(page)
})

const states = ['now', 'runs', 'graph', 'turn', 'messages']

for (const name of states) {
  test(`${name}: loading, then failed, then loaded`, async ({ page }) => {
    const one = view(name)
    let fails = true
    let go = () => {}
    const held = new Promise<void>(done => {
      go = done
    })
    await page.clock.install()
    await page.route(one.answer, async route => {
      await held
      if (!fails) return route.continue()
      const json = {
        type: 'urn:waybill:internal',
        title: 'internal',
        status: 500,
        code: 'internal',
        detail: 'broken on purpose',
      }
      return route.fulfill({ status: 500, contentType: 'application/problem+json', json })
    })
    await page.goto(`/ui/${project}${one.path}`)
    await expect(page.getByRole('status', { name: 'Loading' }).first()).toBeVisible()
    await expect(page.getByRole('main').getByRole('alert')).toHaveCount(0)
    go()
    const failed = page.getByRole('alert').filter({ hasText: 'This could not be loaded' })
    await expect
      .poll(async () => {
        // It is tried again by itself, after a while.
        await page.clock.fastForward(2_000)
        return failed.count()
      })
      .toBe(1)
    await expect(failed).toContainText('broken on purpose')
    await expect(failed).toContainText('internal · HTTP 500')
    await expect(page.getByRole('status', { name: 'Loading' })).toHaveCount(0)
    fails = false
    await failed.getByRole('button', { name: 'Try again' }).click()
    await expect(one.ready(page)).toBeVisible()
    await expect(failed).toHaveCount(0)
  })
}

test('what does not exist is said to be gone', async ({ page }) => {
  const turn = view('turn').path
  const paths = [`/runs/${missing}`, `/turns/${missing}`, `/turns/${missing}/steps/${missing}`]
  for (const path of paths) {
    await page.goto(`/ui/${project}${path}`)
    await expect(page.getByRole('heading', { name: 'This does not exist in this project' }), path).toBeVisible()
    await expect(page.getByRole('button', { name: 'Try again' })).toHaveCount(0)
  }
  await page.goto(`/ui/${project}${turn}/steps/${missing}`)
  await expect(page.getByRole('heading', { name: 'There is no such step in this turn' })).toBeVisible()
  for (const path of ['/runs', '/now']) {
    await page.goto(`/ui/no-such-project${path}`)
    await expect(page.getByRole('heading', { name: 'This does not exist in this project' }), path).toBeVisible()
  }
  await page.goto('/ui/demo/no/such/page')
  await expect(page.getByRole('heading', { name: 'There is no page here' })).toBeVisible()
  await accessible(page)
})

test('a key that may not read is refused in every view, and a key of another project finds nothing', async ({
  page,
}) => {
  const logIn = async (key: string) => {
    await page.context().clearCookies()
    await page.goto('/ui/welcome')
    await page.getByLabel('API key').fill(key)
    await page.getByRole('button', { name: 'Log in' }).click()
    await expect(page).toHaveURL(/\/runs$/)
  }
  const name = `approver-${process.pid}`
  const { key } = await call<{ key: string }>('POST', `/v1/projects/${project}/keys`, { name, scope: 'approver' })
  await logIn(key)
  for (const name of states) {
    await page.goto(`/ui/${project}${view(name).path}`)
    const refused = page.getByRole('main').getByRole('alert').first()
    await expect(refused.getByRole('heading', { name: 'Your key may not see this' }), name).toBeVisible()
    await expect(refused, name).toContainText('HTTP 403')
  }
  await accessible(page)
  const other = await newProject(true)
  await logIn(other.key ?? '')
  await page.goto(`/ui/${project}/runs`)
  await expect(page.getByRole('heading', { name: 'This does not exist in this project' })).toBeVisible()
})

test('two tabs of one browser each show the runs of their own project, live', async ({ page, context }) => {
  const tabs: [Page, string, string][] = []
  const projects = [await newProject(), await newProject()]
  for (const [n, tab] of [page, await context.newPage()].entries()) {
    const slug = projects[n]?.slug ?? ''
    const llm_config = { provider: 'demo', model: 'demo', params: { script: [{ say: 'You said {{query}}' }] } }
    const profile = { name: 'echo', worker_target: 'llm', system_prompt_template: 'You repeat.', llm_config }
    await call('POST', `/v1/projects/${slug}/resources`, { manifests: [{ profile }] })
    await tab.goto(`/ui/${slug}/runs`)
    await expect(tab.getByRole('banner').getByRole('status')).toHaveText(/live/)
    tabs.push([tab, slug, `Only ${slug} sees this`])
  }
  for (const [, slug, says] of tabs) await start('echo', says, slug)
  for (const [tab, slug, says] of tabs) {
    await expect(tab.getByRole('link', { name: says })).toBeVisible()
    await expect(tab.getByLabel('Project')).toHaveValue(slug)
    for (const [, , other] of tabs) if (other !== says) await expect(tab.getByText(other)).toHaveCount(0)
  }
  // The one can go where the other is.
  const [[first], [, slug, says]] = tabs as [(typeof tabs)[0], (typeof tabs)[0]]
  await first.getByLabel('Project').selectOption(slug)
  await expect(first.getByRole('link', { name: says })).toBeVisible()
})

test('a stream that is cut is said to be cut in every view, and goes on', async ({ page }) => {
  await open(page, view('runs'))
  const live = page.getByRole('banner').getByRole('status')
  await expect(live).toHaveText(/live/)
  // A run has a stream of its own: that one does not open.
  await page.route('**/events*', route => route.abort())
  await view('runs').ready(page).click()
  await expect(view('graph').ready(page)).toBeVisible()
  const banner = page.getByRole('alert').filter({ hasText: 'The connection to the server was lost' })
  await expect(live).toHaveText(/cut off/)
  await expect(banner).toBeVisible()
  await accessible(page)
  for (const name of ['Now', 'Runs']) {
    await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name }).click()
    await expect(page.getByRole('heading', { level: 1, name })).toBeVisible()
    await expect(banner).toBeVisible()
  }
  await page.unroute('**/events*')
  await expect(live).toHaveText(/live/, { timeout: 15_000 })
  await expect(banner).toHaveCount(0)
})

test('a narrow screen has all steps of a turn, and each view names its tab', async ({ page }) => {
  const titles = new Set<string>()
  for (const name of ['now', 'runs', 'turn', 'messages']) {
    const one = views.find(one => one.name === name) ?? views.find(one => one.path.includes('/steps/'))!
    await page.goto(`/ui/${project}${one.path}`)
    await expect(one.ready(page)).toBeVisible()
    await expect(page).toHaveTitle(/^.+ · Waybill$/)
    titles.add(await page.title())
  }
  expect(titles.size).toBe(4)

  await page.setViewportSize({ width: 360, height: 740 })
  await page.goto(`/ui/${project}${view('turn').path}`)
  const steps = page.getByRole('combobox', { name: 'Steps' })
  await expect(steps).toBeVisible()
  await steps.selectOption('Step 2')
  await expect(page).toHaveURL(/step=/)
  await expect(page.getByRole('heading', { name: 'Step 2' })).toBeInViewport()
  await fits(page)
})
