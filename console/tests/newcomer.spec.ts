/** What a person does who has never seen Waybill: the demo team from the first click to the question where a sentence came from. */
import type { Page } from '@playwright/test'
import type { components } from '../../sdk/typescript/src/schema'
import { call, expect, newTeam, remember, test, turnsOf, workers } from './lib'

type Schemas = components['schemas']

const rows = (page: Page, level: number) =>
  page.getByRole('treegrid', { name: 'Turns of this run' }).getByRole('row', { level })

test.describe.configure({ mode: 'serial' })

let project = ''
let turn = ''

test('a newcomer starts the demo team, sees it survive the loss of all workers, and approves its answer', async ({
  page,
}) => {
  project = await newTeam()
  await page.goto('/')
  await expect(page).toHaveURL(/\/ui\/[^/]+\/runs$/)
  await expect(page.getByRole('heading', { level: 1, name: 'Runs' })).toBeVisible()

  await page.getByRole('combobox', { name: 'Project' }).selectOption(project)
  await expect(page.getByRole('heading', { name: 'No runs yet' })).toBeVisible()
  await page.getByRole('main').getByRole('button', { name: 'Start', exact: true }).click()
  const dialog = page.getByRole('dialog', { name: 'Start a run' })
  await expect(dialog.getByLabel('Profile')).toHaveValue('publisher')
  await expect(dialog.getByLabel('Instruction')).toHaveValue('How is bread made?')
  await dialog.getByRole('button', { name: 'Start', exact: true }).click()

  await expect(page).toHaveURL(/\/runs\/[0-9a-f-]{36}$/)
  turn = new URL(page.url()).pathname.split('/').at(-1) ?? ''
  await expect(page.getByRole('heading', { level: 1, name: 'How is bread made?' })).toBeVisible()
  await page.getByRole('tab', { name: 'Table' }).click()
  await expect(rows(page, 1)).toHaveText(/publisher/)

  // Nothing on the page is touched from here on: it follows what happens.
  await expect(rows(page, 2)).toHaveText(/editor/, { timeout: 20_000 })
  await expect.poll(() => killedAtWork(), { intervals: [50], timeout: 20_000 }).toBe(true)

  await expect(rows(page, 3)).toHaveCount(3)
  await expect(rows(page, 3)).toHaveText([/researcher 1/, /researcher 2/, /researcher 3/])
  const lost = rows(page, 3).filter({ hasText: 'worker lost → taken over' }).first()
  await expect(lost).toBeVisible({ timeout: 20_000 })
  await expect(rows(page, 4).first()).toHaveText(/archivist.*ask_expert/, { timeout: 20_000 })

  await lost.click()
  const selected = page.getByRole('complementary', { name: 'Selected turn' })
  await expect(selected).toContainText('Its worker was lost, and another one took over')
  await selected.getByRole('link', { name: 'Transcript' }).click()
  const transcript = page.getByRole('region', { name: 'Transcript' })
  await expect(transcript).toContainText('The worker was lost.')
  await expect(transcript).toContainText('Another worker went on from the last stored step.', { timeout: 20_000 })

  await page.getByRole('navigation', { name: 'Views' }).getByRole('link', { name: 'Now' }).click()
  await page.getByRole('link', { name: /^Review: May this answer be published/ }).click({ timeout: 20_000 })
  const asked = page.getByRole('region', { name: 'A person is asked' })
  await expect(asked).toContainText('Bread needs four ingredients')
  await asked.getByRole('button', { name: 'Approve' }).click()
  await expect(asked).toContainText('approved by loopback')

  await page.getByRole('link', { name: 'Whole run' }).click()
  await expect(page.locator('header').filter({ has: page.locator('h1') })).toContainText('success', { timeout: 20_000 })
  const { status } = (await call<Schemas['Shown']>('GET', `/v1/projects/${project}/turns/${turn}`)).turn
  expect(status).toBe('success')

  // Those and only those are marked whose worker was lost, as the record has it.
  await page.getByRole('tab', { name: 'Table' }).click()
  const { segments } = await call<Schemas['Timeline']>(
    'GET',
    `/v1/projects/${project}/turns/${turn}/timeline?tree=true`,
  )
  const taken = new Set(segments.filter(one => one.kind === 'lost').map(one => one.agent_turn_id))
  expect((await turnsOf({ project, turn }, 'researcher')).some(one => taken.has(one))).toBe(true)
  const marked = page.getByRole('treegrid').getByRole('row').filter({ hasText: 'worker lost → taken over' })
  await expect(marked).toHaveCount(taken.size)
  remember({ project, turn })
})

/** Kills all workers if they run a researcher now. They are held still for the look, so that none ends its step between look and kill. */
async function killedAtWork(): Promise<boolean> {
  const held = workers()
  expect(held.length).toBe(2)
  for (const pid of held) process.kill(pid, 'SIGSTOP')
  // What they had sent before is stored by then.
  await new Promise(done => setTimeout(done, 100))
  const { turns } = await call<Schemas['Tree']>('GET', `/v1/projects/${project}/turns/${turn}/tree`)
  const isAtWork = turns.some(one => one.profile_name === 'researcher' && one.agent_status === 'running')
  for (const pid of held) process.kill(pid, isAtWork ? 'SIGKILL' : 'SIGCONT')
  return isAtWork
}

test('from the list of runs, at most six actions lead to the card of a sentence and to who handed it over', async ({
  page,
}) => {
  const run = { project, turn }
  const [researcher] = await turnsOf(run, 'researcher')
  let actions = 0
  const act = async (action: Promise<unknown>) => {
    actions += 1
    await action
  }
  await page.goto(`/ui/${project}/runs`)
  await act(page.getByRole('link', { name: 'How is bread made?' }).click())
  await act(page.getByRole('tab', { name: 'Table' }).click())
  await act(rows(page, 3).filter({ hasText: 'researcher 1' }).click())
  await act(page.getByRole('link', { name: 'What the model saw last' }).click())
  await act(page.getByRole('option', { name: 'tool.result' }).click())

  const message = page.getByRole('complementary', { name: 'The message' })
  await expect(message).toContainText('Bread needs four ingredients: flour, water, salt and yeast.')
  const where = message.getByRole('region', { name: 'Where from' })
  const seen = await call<Schemas['Seen']>('GET', `${new URL(page.url()).pathname.replace(...toContext)}`)
  const card = seen.messages.at(-1)?.sources[0]?.card_id ?? ''
  await expect(where.getByRole('button', { name: `…${card.slice(-8)}` })).toBeVisible()
  await expect(where).toContainText('verified in this browser')
  await expect(where).toContainText('archivist')
  const [archivist] = await childrenOf(researcher ?? '')
  await expect(where.getByRole('link', { name: 'archivist' })).toHaveAttribute(
    'href',
    `/ui/${project}/turns/${archivist}`,
  )

  await act(page.getByRole('option', { name: 'query' }).click())
  await expect(message).toContainText('Ingredients: How is bread made?')
  await expect(where).toContainText('editor gave it as an argument of fork_join.')
  expect(actions).toBeLessThanOrEqual(6)
})

const toContext: [RegExp, string] = [
  /^\/ui\/(.*)\/turns\/(.*)\/steps\/(.*)$/,
  '/v1/projects/$1/turns/$2/context?step_id=$3',
]

async function childrenOf(parent: string): Promise<string[]> {
  return (await turnsOf({ project, turn: parent }, 'archivist')).filter(one => one !== parent)
}
