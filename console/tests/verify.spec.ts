/** The browser checks what the server says: it must see every change, and say what a tick does not prove. */
import type { Page, Route } from '@playwright/test'
import type { components } from '../../sdk/typescript/src/schema'
import { hashCard } from '../src/verify/hash'
import { anEndedRun, call, expect, show, test, turnsOf } from './lib'

type Schemas = components['schemas']
type Cards = { found: Schemas['Reading'][] }
type Places = { items: Schemas['Placed'][] }

let address = ''
let other = ''

test.beforeAll(async () => {
  const run = await anEndedRun()
  const [editor = ''] = await turnsOf(run, 'editor')
  const { steps } = await show(editor, run.project)
  address = `/ui/${run.project}/turns/${editor}/steps/${steps.at(-1)?.step_id}`
  other = `/v1/projects/${run.project}/turns/${editor}/context/request?step_id=${steps[0]?.step_id}`
})

const banner = (page: Page) => page.getByRole('alert').filter({ hasText: 'This is not what was recorded' })
const badge = (page: Page) => page.getByRole('button', { name: /list of cards/ })
const allVerified =
  /verified in this browser request verified in this browser \d+ cards verified in this browser list of cards/

test('a real call is verified: the request, every card, and the list of cards', async ({ page }) => {
  await page.goto(address)
  await expect(badge(page)).toHaveAccessibleName(allVerified)
  await expect(banner(page)).toHaveCount(0)
  await badge(page).click()
  const details = page.getByRole('region', { name: 'Details of the verification' })
  const { receipt } = await call<Schemas['Seen']>('GET', contextOf(address))
  // Both values are there: what is on record, and what was computed here.
  await expect(details.getByText(receipt.request_hash)).toHaveCount(2)
  await expect(details.getByText(receipt.cards_hash)).toHaveCount(2)
  await expect(details).toContainText(/[1-9]\d* verified, 0 do not match, 0 cannot be checked/)
  await expect(details).toContainText('it does not prove that the record was never replaced as a whole')
  await expect(details).toContainText('--request | b3sum')
  await page.getByRole('button', { name: 'Verify again' }).click()
  await expect(badge(page)).toHaveAccessibleName(allVerified)
})

const contextOf = (page: string) =>
  page.replace(/^\/ui\/(.*)\/turns\/(.*)\/steps\/(.*)$/, '/v1/projects/$1/turns/$2/context?step_id=$3')

const request = '**/context/request?*'
const context = '**/context?*'
const cards = '**/cards/batch'
const places = '**/boxes/*/cards?*'

/** Changes an answer that is JSON. */
const json =
  <T>(change: (answer: T) => void) =>
  async (route: Route) => {
    const response = await route.fetch()
    const answer = (await response.json()) as T
    const before = JSON.stringify(answer)
    change(answer)
    expect(JSON.stringify(answer)).not.toBe(before)
    await route.fulfill({ response, json: answer })
  }

/** Changes the bytes of the request. */
const bytes = (change: (body: Buffer) => Buffer) => async (route: Route) => {
  const response = await route.fetch()
  await route.fulfill({ response, body: change(await response.body()) })
}

const flip = (text: string) => (text.startsWith('0') ? '1' : '0') + text.slice(1)
const ofType = ({ found }: Cards, type: string) => found.find(card => card.metadata?.type === type)!

/** What is changed, in which answer, and what the page must name. */
type Tampered = [string, string, (route: Route) => Promise<void>, RegExp]
const tampered: Tampered[] = [
  [
    'one bit of the request',
    request,
    bytes(body => {
      const at = body.indexOf('researchers')
      body[at] = body[at]! ^ 1
      return body
    }),
    /request/,
  ],
  ['a space at the end of the request', request, bytes(body => Buffer.concat([body, Buffer.from(' ')])), /request/],
  ['a request that ends early', request, bytes(body => body.subarray(0, -1)), /request/],
  [
    'the request of another step',
    request,
    async route => {
      const response = await route.fetch({ url: new URL(other, route.request().url()).href })
      await route.fulfill({ response })
    },
    /request/,
  ],
  [
    'the text of the system prompt',
    cards,
    json<Cards>(answer => {
      ofType(answer, 'sys.rendered_prompt').content = 'You are the editor. Say that bread needs no yeast.'
    }),
    /1 card/,
  ],
  [
    'the text of a card, with a hash that fits it',
    cards,
    json<Cards>(answer => {
      const card = ofType(answer, 'sys.rendered_prompt')
      card.content = 'You are the editor. Say that bread needs no yeast.'
      card.hash = hashCard(card)
    }),
    /list of cards, 1 card/,
  ],
  [
    'who wrote a card',
    places,
    json<Places>(({ items }) => {
      items[0]!.reading.metadata!.author_id = 'somebody else'
    }),
    /card/,
  ],
  [
    'the salt of a card',
    places,
    json<Places>(({ items }) => {
      items[0]!.reading.salt = flip(items[0]!.reading.salt ?? '00')
    }),
    /card/,
  ],
  [
    'two cards in another order',
    places,
    json<Places>(({ items }) => {
      ;[items[0]!.reading, items[1]!.reading] = [items[1]!.reading, items[0]!.reading]
    }),
    /list of cards/,
  ],
  [
    'a salt that is none',
    places,
    json<Places>(({ items }) => {
      items[0]!.reading.salt = 'no hex'
    }),
    /card/,
  ],
  [
    'a card from before the span',
    places,
    json<Places>(({ items }) => {
      items[0]!.place = 0
    }),
    /list of cards/,
  ],
  [
    'a card that comes twice',
    places,
    json<Places>(({ items }) => {
      items.splice(1, 0, structuredClone(items[0]!))
    }),
    /list of cards/,
  ],
  [
    'a card that is kept back',
    places,
    json<Places>(({ items }) => {
      items.pop()
    }),
    /list of cards/,
  ],
  [
    'another hash of the request in the receipt',
    context,
    json<Schemas['Seen']>(({ receipt }) => {
      receipt.request_hash = flip(receipt.request_hash)
    }),
    /request/,
  ],
  [
    'another hash of the list in the receipt',
    context,
    json<Schemas['Seen']>(({ receipt }) => {
      receipt.cards_hash = flip(receipt.cards_hash)
    }),
    /list of cards/,
  ],
  [
    'two cards of the receipt in another order',
    context,
    json<Schemas['Seen']>(({ receipt }) => {
      receipt.blocks.reverse()
    }),
    /list of cards/,
  ],
  [
    'the hash of a card that a message names',
    context,
    json<Schemas['Seen']>(({ messages }) => {
      messages[0]!.sources[0]!.hash = flip(messages[0]!.sources[0]!.hash)
    }),
    /1 card/,
  ],
  [
    'a card that a message names, but the receipt does not',
    context,
    json<Schemas['Seen']>(({ messages }) => {
      messages[0]!.sources[0]!.card_id = messages[0]!.sources[0]!.card_id.replace(/.$/, end => flip(end))
    }),
    /1 card/,
  ],
]

/** As many changes again and more, spread over all that is hashed: bits of the request, cards, and digits of the hashes of the receipt. */
function* spread(): Generator<Tampered> {
  const at = <T>(list: T[], share: number) => list[Math.floor(share * list.length)]!
  const spoil = (card: Schemas['Reading'], share: number) => {
    const text = card.content
    if (typeof text === 'string' && text !== '') {
      const place = Math.floor(share * text.length)
      card.content = `${text.slice(0, place)}${text[place] === 'x' ? 'y' : 'x'}${text.slice(place + 1)}`
    } else card.metadata!.type = 'another'
  }
  const digit = (hash: string, n: number) => hash.slice(0, n) + flip(hash.slice(n))
  for (let n = 0; n < 40; n += 1) {
    const change = bytes(body => {
      const place = Math.floor((n / 40) * body.length)
      body[place] = body[place]! ^ (1 << (n % 8))
      return body
    })
    yield [`bit ${n % 8} of the byte at ${n}/40 of the request`, request, change, /request/]
  }
  for (let n = 0; n < 16; n += 1) {
    const change = json<Places>(({ items }) => spoil(at(items, n / 16).reading, n / 16))
    yield [`a card at ${n}/16 of the list`, places, change, /card/]
  }
  for (let n = 0; n < 10; n += 1) {
    yield [
      `a card at ${n}/10 of the others`,
      cards,
      json<Cards>(({ found }) => spoil(at(found, n / 10), n / 10)),
      /card/,
    ]
  }
  for (let n = 1; n < 64; n += 5) {
    const ofRequest = json<Schemas['Seen']>(({ receipt }) => {
      receipt.request_hash = digit(receipt.request_hash, n)
    })
    yield [`digit ${n} of the hash of the request`, context, ofRequest, /request/]
    const ofList = json<Schemas['Seen']>(({ receipt }) => {
      receipt.cards_hash = digit(receipt.cards_hash, n)
    })
    yield [`digit ${n} of the hash of the list`, context, ofList, /list of cards/]
  }
}

/** Makes each change, and checks that the page names it. */
async function areSeen(page: Page, all: Tampered[]) {
  test.slow()
  await page.goto(address)
  await expect(badge(page)).toHaveAccessibleName(allVerified)
  for (const [what, answers, change, named] of all) {
    await test.step(what, async () => {
      let changed = 0
      await page.route(answers, async route => {
        changed += 1
        await change(route)
      })
      // The receipt is asked for once; all else again with each verification, which begins with nothing.
      if (answers === context) await page.reload()
      else await page.keyboard.press('v')
      await expect.poll(() => changed, { message: `${what}: nothing was changed`, intervals: [50] }).toBeGreaterThan(0)
      await expect(banner(page), what).toBeVisible()
      await expect(banner(page), what).toContainText(named)
      await expect(badge(page), what).toHaveAccessibleName(/does not match/)
      await page.unrouteAll({ behavior: 'wait' })
    })
  }
  // It was the answers, not the page.
  await page.reload()
  await expect(badge(page)).toHaveAccessibleName(allVerified)
  await expect(banner(page)).toHaveCount(0)
}

test('every change of an answer is seen, and named', ({ page }) => areSeen(page, tampered))

test('with these, a hundred changes are seen, and named', async ({ page }) => {
  const all = [...spread()]
  expect(tampered.length + all.length).toBeGreaterThanOrEqual(100)
  await areSeen(page, all)
})

test('what cannot be checked has no tick, and is no alarm', async ({ page }) => {
  await page.route(request, route => route.abort())
  await page.goto(address)
  await expect(badge(page)).toHaveAccessibleName(/cannot be checked request verified in this browser/)
  await expect(banner(page)).toHaveCount(0)
})

const bodies = '**/context/messages?*'
type Bodies = { items: Schemas['SeenMessage'][] }
const message = (page: Page) => page.getByRole('complementary', { name: 'The message' })

test('a message is compared with the bytes of its place', async ({ page }) => {
  const stands = '✔ This message stands in the request at its place'
  const isNot = 'The request that was read does not say this here'
  await page.goto(`${address}?message=3`)
  await expect(message(page)).toContainText(stands)
  type One = Schemas['SeenMessage']
  const forged: [string, (one: One, others: One[]) => Partial<One>][] = [
    ['other words', () => ({ content: 'Say that bread needs no yeast.' })],
    ['a part of the words', one => ({ content: one.content!.slice(0, -5) })],
    ['the words of another message', (_, others) => ({ content: others[0]!.content! })],
    ['another role', () => ({ role: 'assistant' })],
    ['no words', () => ({ content: '' })],
    ['reasoning', () => ({ reasoning: { adapter: 'openai_chat', text: 'I obey.' } })],
  ]
  for (const [what, change] of forged) {
    await page.route(
      bodies,
      json<Bodies>(({ items }) => void Object.assign(items[2]!, change(items[2]!, items))),
    )
    await page.reload()
    if (what === 'reasoning') await expect(message(page), what).toContainText('was not sent in this form')
    else await expect(message(page), what).toContainText(isNot)
    if (what !== 'reasoning') await expect(message(page), what).not.toContainText('✔ This message')
    await page.unrouteAll({ behavior: 'wait' })
  }
})

test('a list of messages that is not that of the request is refused', async ({ page }) => {
  const refused = page.getByRole('alert').filter({ hasText: 'This list is not that of the request' })
  await page.goto(address)
  await expect(badge(page)).toHaveAccessibleName(allVerified)
  await expect(refused).toHaveCount(0)
  const forged: [string, (answer: Schemas['Seen']) => void][] = [
    ['a message fewer', ({ messages }) => void messages.pop()],
    ['another role', ({ messages }) => void Object.assign(messages[2]!, { role: 'system' })],
    ['another order', ({ messages }) => void messages.reverse()],
    ['no tools', answer => void Object.assign(answer, { tools: null })],
  ]
  for (const [what, change] of forged) {
    await page.route(context, json<Schemas['Seen']>(change))
    await page.reload()
    await expect(refused, what).toBeVisible()
    await page.unrouteAll({ behavior: 'wait' })
  }
})

test('after an upgrade the page asks to be loaded again, and blames nobody', async ({ page }) => {
  await page.route('**/assets/verify.worker*', route => route.fulfill({ status: 404, body: '' }))
  await page.goto(address)
  await expect(page.getByRole('alert').filter({ hasText: 'The server was upgraded' })).toBeVisible()
  await expect(banner(page)).toHaveCount(0)
  await page.unrouteAll({ behavior: 'wait' })
  await page.getByRole('button', { name: 'Load again' }).click()
  await expect(badge(page)).toHaveAccessibleName(allVerified)
})
