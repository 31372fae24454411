/**
 * Calls of the demo team, recorded from a running server: the receipts, requests and hashes are those that Rust wrote. Untouched they verify;
 * with one thing changed they never do.
 */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import { canonical } from './canonical'
import { NotRenderable, type Placed, type Server, verify } from './check'
import { hashBytes, hashCard, type Reading, type Receipt } from './hash'
import { add, type Check, cardsState, countCards, mismatches, nothingYet, stateOf } from './result'
import recorded from './vectors/calls.json'

interface Call {
  turn: string
  step_id: string
  receipt: Receipt
  request: string
  cards: Reading[]
  boxes: Record<string, Placed[]>
  sources: [string, string][]
}

const calls = recorded as unknown as Call[]

/** A server that gives what was recorded, in pieces. */
function serverOf(call: Call, bytes = new TextEncoder().encode(call.request)): Server {
  return {
    async *request() {
      for (let at = 0; at < bytes.length; at += 1_000) yield bytes.slice(at, at + 1_000)
    },
    cards: async ids => call.cards.filter(card => ids.includes(card.card_id)),
    places: async ({ box_id, from, upto }) =>
      (call.boxes[box_id] ?? []).filter(({ place }) => place >= from && place <= upto),
  }
}

async function check(call: Call, server = serverOf(call)) {
  let verification = nothingYet
  const take = (checks: Check[]) => {
    verification = add(verification, checks)
  }
  await verify(call.receipt, call.sources, server, { checks: take })
  return { ...verification, done: true }
}

/** The same numbers each time. */
function dice(seed: number) {
  let state = seed
  return (below: number) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0
    return Math.floor((state / 2 ** 32) * below)
  }
}

describe('the forms that are hashed', () => {
  test('the canonical form is RFC 8785, as crates/core/src/json.rs has it', () => {
    const form = (text: string) => canonical(JSON.parse(text))
    expect(form('{"b":1.0,"a":[true,null,"x"]}')).toBe('{"a":[true,null,"x"],"b":1}')
    expect(form('[1e-7,-0,0.30000000000000004,1e21]')).toBe('[1e-7,0,0.30000000000000004,1e+21]')
    expect(form('9007199254740991')).toBe('9007199254740991')
    expect(form('"\\u20ac\\u001f\\u007f\\u2028␛0000"')).toBe('"€\\u001f\u007f\u2028␛0000"')
    expect(form('{"\\ufb33":1,"\\ud83d\\ude00":2,"__proto__":3}')).toBe('{"__proto__":3,"😀":2,"\ufb33":1}')
  })

  test('the hash of a card is that of crates/core/src/card/hash.rs', () => {
    const card = {
      card_id: '',
      hash: '',
      state: 'live' as const,
      salt: [...'0123456789abcdef'].map(c => c.charCodeAt(0).toString(16)).join(''),
      content: 'Summarise the report',
      metadata: { type: 'task.instruction', role: 'user' as const, author_id: 'user-1' },
    }
    expect(hashCard(card)).toBe('ef2cb79f2d0f7b43cd9236f2d758373c0313696e4e91888a26ad95b7005ef0ef')
  })

  test('BLAKE3 of nothing', () => {
    expect(hashBytes(new Uint8Array())).toBe('af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262')
  })
})

/** `b3sum *.json` in the folder of the golden requests: what Rust's BLAKE3 makes of them. Made anew with that whenever they change. */
describe('golden requests', () => {
  const sums = readFileSync(join(import.meta.dirname, 'vectors/golden.b3'), 'utf8')
  const known = [...sums.matchAll(/^([0-9a-f]{64}) {2}(.+)$/gm)].map(([, hash, name]) => [name!, hash!] as const)
  const golden = join(import.meta.dirname, '../../../crates/context/golden')

  test('each has a hash', () => {
    const names = readdirSync(golden).filter(name => name.endsWith('.json'))
    expect(known.map(([name]) => name)).toEqual(names.sort())
    expect(known).toHaveLength(33)
  })

  /** Checks only the request. */
  async function checkBytes(bytes: Uint8Array<ArrayBuffer>, request_hash: string) {
    const call = structuredClone(calls[0]!)
    call.receipt.request_hash = request_hash
    const { request } = await check(call, serverOf(call, bytes))
    return request
  }

  test.each(known)('%s verifies, and with one thing changed it does not', async (name, hash) => {
    const bytes = new Uint8Array(readFileSync(join(golden, name)))
    expect((await checkBytes(bytes, hash))?.ok).toBe(true)
    const roll = dice(bytes.length)
    const flipped = bytes.slice()
    flipped[roll(bytes.length)]! ^= 1 << roll(8)
    const at = roll(bytes.length - 1)
    const swapped = bytes.slice()
    swapped[at] = (bytes[at]! + 1) % 256
    for (const tampered of [flipped, swapped, bytes.slice(0, -1), new Uint8Array([...bytes, 0x20])]) {
      const found = await checkBytes(tampered, hash)
      expect([found?.ok, found?.expected]).toEqual([false, hash])
    }
  })
})

describe('recorded calls', () => {
  test.each(calls.map((call, n) => [n, call] as const))('call %i verifies', async (_, call) => {
    const result = await check(call)
    expect(mismatches(result)).toEqual([])
    expect([stateOf(result.request), cardsState(result), stateOf(result.list)]).toEqual([
      'verified',
      'verified',
      'verified',
    ])
    expect(countCards(result).verified).toBeGreaterThanOrEqual(call.sources.length)
  })

  const kinds = [
    'request',
    'content',
    'order',
    'dropped',
    'request_hash',
    'cards_hash',
    'card_hash',
    'source',
    'stray',
    'place',
    'rising',
    'salt',
    'second_hash',
  ] as const
  test.each(Array.from({ length: 156 }, (_, n) => n))('tampered call %i does not', async n => {
    const roll = dice(n + 1)
    const call: Call = structuredClone(calls[n % calls.length]!)
    const kind = kinds[n % kinds.length]!
    const flip = (hex: string) => {
      const at = roll(hex.length)
      const other = ((Number.parseInt(hex[at]!, 16) + 1 + roll(15)) % 16).toString(16)
      return hex.slice(0, at) + other + hex.slice(at + 1)
    }
    const placed = [...call.receipt.history, call.receipt.output].flatMap(({ box_id, upto }) =>
      (call.boxes[box_id] ?? []).filter(({ place }) => place <= upto),
    )
    const every = [...call.cards, ...placed.map(one => one.reading)]
    const one = every[roll(every.length)]!
    let server = serverOf(call)
    let expected: Check['what'] = 'list'
    if (kind === 'request') {
      const bytes = new TextEncoder().encode(call.request)
      bytes[roll(bytes.length)]! ^= 1 << roll(8)
      server = serverOf(call, bytes)
      expected = 'request'
    } else if (kind === 'content') {
      const text = JSON.stringify(one.content)
      one.content = typeof one.content === 'string' ? `${one.content} ` : JSON.parse(text.replace(/"([^"]*)"/, '"$1x"'))
      expected = 'card'
    } else if (kind === 'order') {
      call.receipt.blocks.reverse()
    } else if (kind === 'dropped') {
      const { box_id } = call.receipt.history[0]!
      call.boxes[box_id] = call.boxes[box_id]!.slice(1)
    } else if (kind === 'request_hash') {
      call.receipt.request_hash = flip(call.receipt.request_hash)
      expected = 'request'
    } else if (kind === 'cards_hash') {
      call.receipt.cards_hash = flip(call.receipt.cards_hash)
    } else if (kind === 'card_hash') {
      one.hash = flip(one.hash)
    } else if (kind === 'stray') {
      // A card that the receipt does not name, but a message does: the server gives it unasked.
      const stray: Reading = { ...call.cards[0]!, card_id: '01a1eedc-0000-7000-8000-000000000000', content: 'A lie.' }
      stray.hash = hashCard(stray)
      call.sources.push([stray.card_id, stray.hash])
      server = { ...server, cards: async ids => [...call.cards.filter(card => ids.includes(card.card_id)), stray] }
      expected = 'card'
    } else if (kind === 'place' || kind === 'rising') {
      const by = kind === 'place' ? -1_000 : 0
      server = {
        ...server,
        places: async span => {
          const [first, ...others] = await serverOf(call).places(span)
          return [
            ...(first
              ? [
                  { ...first, place: first.place + by },
                  { ...first, place: first.place + by },
                ]
              : []),
            ...others,
          ]
        },
      }
    } else if (kind === 'salt') {
      one.salt = ['', 'no hex', 'abc', 'ff'.repeat(16)][roll(4)] || 'x'
      expected = 'card'
    } else if (kind === 'second_hash') {
      const [cardId, hash] = call.sources[roll(call.sources.length)]!
      call.sources.unshift([cardId, flip(hash)])
      expected = 'card'
    } else {
      const source = call.sources[roll(call.sources.length)]!
      source[1] = flip(source[1])
      expected = 'card'
    }
    const result = await check(call, server)
    expect(mismatches(result).map(check => check.what)).toContain(expected)
  })

  test('a card that is written anew with its own hash is found by the list', async () => {
    const call = structuredClone(calls[0]!)
    const card = call.cards[0]!
    card.content = 'You are somebody else.'
    card.hash = hashCard(card)
    const result = await check({
      ...call,
      sources: call.sources.map(([id, hash]) => [id, id === card.card_id ? card.hash : hash]),
    })
    expect(cardsState(result)).toBe('verified')
    expect(stateOf(result.list)).toBe('mismatch')
  })

  test('what cannot be checked is neither verified nor a mismatch', async () => {
    const call = structuredClone(calls[0]!)
    const erased = call.cards[0]!
    call.cards[0] = { state: 'gone', card_id: erased.card_id, hash: erased.hash, why: 'erased', reason: 'asked' }
    const server: Server = {
      ...serverOf(call),
      // biome-ignore lint/correctness/useYield: it fails before the first byte
      async *request() {
        throw new NotRenderable('1 of its cards has been erased')
      },
    }
    const result = await check(call, server)
    expect(mismatches(result)).toEqual([])
    expect([stateOf(result.request), cardsState(result), stateOf(result.list)]).toEqual([
      'unchecked',
      'unchecked',
      'verified',
    ])
    expect(result.request?.why).toBe('not_renderable')
  })

  test('a missing card and a server that fails leave nothing verified', async () => {
    const call = structuredClone(calls[0]!)
    const lost = await check({ ...call, cards: call.cards.slice(1) })
    expect([lost.list?.why, stateOf(lost.list), cardsState(lost)]).toEqual(['missing', 'unchecked', 'unchecked'])
    const failing: Server = { ...serverOf(call), places: () => Promise.reject(new Error('503')) }
    const failed = await check(call, failing)
    expect([stateOf(failed.list), cardsState(failed)]).toEqual(['unchecked', 'unchecked'])
  })

  test('a request without its credentials cannot be compared as a whole, and is no forgery', async () => {
    const call = structuredClone(calls[0]!)
    call.request = call.request.replace('"model"', '"api_key":"[withheld]","model"')
    call.receipt.recorded = {
      provider: 'openai',
      skeleton_card_id: call.receipt.system_prompt_card_id!,
      rests_on: 'bytes',
      withheld: ['api_key', 'tools[0].authorization'],
    }
    const { request } = await check(call)
    expect([request?.ok, request?.why, request?.detail]).toEqual([null, 'withheld', 'api_key, tools[0].authorization'])
    // Without that, the same bytes are not what was recorded.
    call.receipt.recorded.withheld = []
    expect((await check(call)).request?.ok).toBe(false)
  })

  test('a worse result is not replaced by a better one', () => {
    const bad: Check = { what: 'request', expected: 'a', computed: 'b', ok: false }
    const found = add(add(nothingYet, [bad]), [{ ...bad, computed: null, ok: null, why: 'failed' }])
    expect(found.request).toEqual(bad)
    expect(add(nothingYet, [{ ...bad, ok: true }, bad]).request).toEqual(bad)
  })

  test('a message may not name a card that the receipt does not cover', async () => {
    const call = structuredClone(calls[0]!)
    call.sources.push(['01a1eedc-0000-7000-8000-000000000000', '00'.repeat(32)])
    expect(mismatches(await check(call)).map(check => check.why)).toEqual(['not_listed'])
  })
})
