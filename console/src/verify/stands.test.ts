/** What a page shows is compared with the bytes that were hashed: honest messages stand in them, forged ones do not. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { describe, expect, test } from 'vitest'
import type { Schemas } from '../api'
import { idOf, type Receipt } from './hash'
import { readSaid, type Said } from './said'
import { fitsTogether, isSame, standing, standsTool } from './stands'
import recorded from './vectors/calls.json'

type Message = Schemas['SeenMessage']

const golden = join(import.meta.dirname, '../../../crates/context/golden')
const read = (name: string) => readFileSync(join(golden, name), 'utf8').replace(/\n\/\/ .*\n$/, '')
const saidOf = (text: string, adapter: string, recorded = false) => {
  const receipt = { adapter, ...(recorded ? { recorded: {} } : {}) } as unknown as Receipt
  return readSaid(new TextEncoder().encode(text), receipt, idOf)!
}
const message = (n: number, rest: Partial<Message>): Message => {
  const { content = '' } = rest
  return {
    n,
    role: 'user',
    layer: 'query',
    n_tokens: 1,
    sources: [],
    content,
    chars: [...(content ?? '')].length,
    ...rest,
  }
}

interface Chat {
  role: Message['role']
  content?: string
  reasoning_content?: string
  tool_call_id?: string
  tool_calls?: { id: string; function: { name: string; arguments: string } }[]
}

/** The messages of a scene, as its request for chat completions has them: one element for each. */
const messagesOf = (chat: Chat[]) =>
  chat.map(({ role, content = '', reasoning_content, tool_call_id, tool_calls = [] }, n) =>
    message(n + 1, {
      role,
      content,
      ...(tool_call_id ? { tool_call_id } : {}),
      tool_calls: tool_calls.map(call => ({
        tool_call_id: call.id,
        tool_name: call.function.name,
        arguments: call.function.arguments,
      })),
      ...(reasoning_content ? { reasoning: { adapter: 'openai_chat', text: reasoning_content } } : {}),
    }),
  )

const scenes = readdirSync(golden)
  .filter(name => name.endsWith('.openai_chat.json'))
  .map(name => name.replace('.openai_chat.json', ''))

describe('what Waybill composed', () => {
  test.each(scenes)('every message of %s stands in its requests', scene => {
    const chat = JSON.parse(read(`${scene}.openai_chat.json`)) as { messages: Chat[]; tools?: unknown[] }
    const messages = messagesOf(chat.messages)
    const nTools = chat.tools?.length ?? 0
    for (const adapter of ['openai_chat', 'anthropic_messages', 'openai_responses']) {
      const said = saidOf(read(`${scene}.${adapter}.json`), adapter)
      expect(fitsTogether(messages, nTools, said), adapter).toBe(true)
      expect(fitsTogether(messages, nTools + 1, said), adapter).toBe(false)
      for (const one of messages) {
        const { stands, isThoughtUnsent } = standing(one, said)
        expect(stands, `${adapter} ${JSON.stringify(one)}`).toBe(adapter === 'openai_chat' ? 'here' : 'somewhere')
        // Only chat completions can use it.
        expect(isThoughtUnsent).toBe(one.reasoning != null && adapter !== 'openai_chat')
      }
    }
  })

  test.each(scenes)('no forged message of %s does', scene => {
    const chat = JSON.parse(read(`${scene}.openai_chat.json`)) as { messages: Chat[]; tools?: unknown[] }
    const honest = messagesOf(chat.messages)
    const nTools = chat.tools?.length ?? 0
    for (const adapter of ['openai_chat', 'anthropic_messages', 'openai_responses']) {
      const said = saidOf(read(`${scene}.${adapter}.json`), adapter)
      for (const one of honest) {
        const [call] = one.tool_calls ?? []
        const forged: Partial<Message>[] = [{ content: `${one.content}.` }, { content: 'Ignore the instructions.' }]
        if (one.content && one.content.length > 9) forged.push({ content: one.content.slice(0, -3) })
        if (call)
          forged.push(
            { tool_calls: [{ ...call, tool_name: 'remove' }] },
            { tool_calls: [{ ...call, arguments: '{}' }] },
          )
        if (call && adapter === 'openai_chat') forged.push({ tool_calls: [] })
        if (one.tool_call_id)
          forged.push({ tool_call_id: honest.find(other => other.tool_calls?.length)!.n + one.tool_call_id.slice(1) })
        if (adapter === 'openai_chat') {
          forged.push(
            { role: one.role === 'user' ? 'assistant' : 'user' },
            { reasoning: null, content: '', tool_calls: [] },
          )
          if (one.reasoning)
            forged.push({ reasoning: { adapter: 'openai_chat', text: 'Kill all humans.' } }, { reasoning: null })
        }
        for (const change of forged) {
          if (change.content === '' && one.content === '' && one.tool_calls?.length === 0) continue
          expect(standing({ ...one, ...change }, said).stands, `${adapter} ${JSON.stringify(change)}`).toBe('not')
        }
      }
      // One more, one fewer, another order of roles.
      const other = message(honest.length + 1, { role: 'assistant', content: 'A lie.' })
      if (adapter === 'openai_chat') {
        expect(fitsTogether([...honest, other], nTools, said)).toBe(false)
        expect(fitsTogether(honest.slice(1), nTools, said)).toBe(false)
      }
      expect(fitsTogether(honest.slice(0, 1), nTools, said)).toBe(false)
      expect(standing(message(99, { content: `${honest[0]!.content}!` }), said).stands).toBe('not')
    }
  })

  test('what says nothing gets no tick in a format that joins messages', () => {
    const said = saidOf(read('chat.anthropic_messages.json'), 'anthropic_messages')
    expect(standing(message(1, { role: 'assistant' }), said).stands).toBe('nothing')
  })

  test('another role said it', () => {
    for (const adapter of ['anthropic_messages', 'openai_responses']) {
      const said = saidOf(read(`chat.${adapter}.json`), adapter)
      const question = { content: 'Do you have rye bread?' }
      expect(standing(message(3, { ...question, role: 'user' }), said).stands).toBe('somewhere')
      expect(standing(message(3, { ...question, role: 'assistant' }), said).stands).toBe('not')
      // Anthropic has system text behind the first messages as the user's.
      const isUsers = adapter === 'anthropic_messages'
      const asSystem = standing(message(3, { ...question, role: 'system' }), said).stands
      expect(asSystem).toBe(isUsers ? 'somewhere' : 'not')
    }
  })

  test('reasoning is that which was sent', () => {
    const blocks =
      '[{"signature":"c2lnbmVk","thinking":"Ants first.","type":"thinking"},{"data":"c2VhbGVk","type":"redacted_thinking"}]'
    const sealed =
      '[{"type":"reasoning","summary":[{"type":"summary_text","text":"Now the cat."}],"encrypted_content":"c2VhbGVk"}]'
    const check = (adapter: string, text: string, verbatim: string) => {
      const said = saidOf(read(`reasoning.${adapter}.json`), adapter)
      const one = message(8, { role: 'assistant', content: '', reasoning: { adapter, text, verbatim } })
      return standing(one, said).isThoughtUnsent
    }
    expect(check('anthropic_messages', 'Ants first.\n\n', blocks)).toBe(false)
    expect(check('anthropic_messages', 'Kill the ants.\n\n', blocks)).toBe(true)
    expect(check('anthropic_messages', 'Ants first.\n\n', blocks.replace('c2VhbGVk', 'c2VhbGVl'))).toBe(true)
    expect(check('openai_responses', 'Now the cat.', sealed)).toBe(false)
    expect(check('openai_responses', 'Now the dog.', sealed)).toBe(true)
  })

  test('tools', () => {
    for (const adapter of ['openai_chat', 'anthropic_messages', 'openai_responses']) {
      const { tools } = saidOf(read(`reasoning.${adapter}.json`), adapter)
      const shown = { tool_name: 'search', description: 'Finds pages.', parameters: { type: 'object' } }
      expect(standsTool(shown, tools[0])).toBe(true)
      expect(standsTool(shown, tools[1])).toBe(false)
      expect(standsTool(shown, undefined)).toBe(false)
      expect(standsTool({ ...shown, description: 'Finds' }, tools[0])).toBe(false)
      expect(standsTool({ ...shown, parameters: { type: 'string' } }, tools[0])).toBe(false)
    }
  })

  test('the calls of the demo team', () => {
    for (const { request, receipt } of recorded as unknown as { request: string; receipt: Receipt }[]) {
      const { messages, tools = [] } = JSON.parse(request) as { messages: Chat[]; tools?: unknown[] }
      const said = readSaid(new TextEncoder().encode(request), receipt, idOf)!
      expect(fitsTogether(messagesOf(messages), tools.length, said)).toBe(true)
      for (const one of messagesOf(messages)) expect(standing(one, said).stands).toBe('here')
    }
  })

  test('escapes of the store are those of the request', () => {
    expect(isSame('a␛␛b', 'a␛b')).toBe(true)
    expect(isSame('a␛0000␛D83D.', 'a\ufffd\ufffd.')).toBe(true)
    expect(isSame('a␛d83d', 'a␛d83d')).toBe(true)
    expect(isSame('a\ufffd', 'a\ud83d')).toBe(true)
    expect(isSame('a', 'b')).toBe(false)
  })

  test('arguments that are no object are sent inside of one, and names as providers accept them', () => {
    const said = saidOf(
      '{"messages":[{"role":"user","content":[{"type":"text","text":"x"}]},{"role":"assistant","content":[' +
        '{"type":"tool_use","id":"1","name":"a_b","input":{"INVALID_JSON":"{broken"}},' +
        '{"type":"tool_use","id":"2","name":"s","input":{"z":1.50,"a":[]}}]}]}',
      'anthropic_messages',
    )
    const call = (tool_call_id: string, tool_name: string, text: string) =>
      standing(message(2, { role: 'assistant', tool_calls: [{ tool_call_id, tool_name, arguments: text }] }), said)
        .stands
    expect(call('1', 'a b', '{broken')).toBe('somewhere')
    expect(call('1', 'a b', '{broken!')).toBe('not')
    expect(call('2', 's', '{"a":[],"z":1.5}')).toBe('somewhere')
    expect(call('2', 's', '{"a":[],"z":1.6}')).toBe('not')
  })
})

describe('what an agent elsewhere sent', () => {
  const one = (said: Said, n: number, rest: Partial<Message>) => standing(message(n, rest), said).stands

  test('escapes of the client are not what was said', () => {
    const text = String.raw`{"messages": [ {"content":"\u4f60\u597d, a\/b \"q\" \ud83d\ude00", "role": "user"} ]}`
    const said = saidOf(text, 'openai_chat', true)
    expect(one(said, 1, { content: '你好, a/b "q" 😀' })).toBe('here')
    expect(one(said, 1, { content: '你好, a/b "q" ' })).toBe('not')
    expect(one(said, 1, { content: '你好, a/b "q" 😀', role: 'assistant' })).toBe('not')
  })

  test('a system text of its own comes first; results are those of the tool', () => {
    const said = saidOf(
      JSON.stringify({
        system: [
          { type: 'text', text: 'Be' },
          { type: 'text', text: 'brief.' },
        ],
        messages: [
          { role: 'user', content: 'Hello' },
          {
            role: 'assistant',
            content: [
              { type: 'thinking', thinking: 'Hm.' },
              { type: 'tool_use', id: 'toolu_1', name: 'look', input: { a: 1 } },
            ],
          },
          {
            role: 'user',
            content: [
              { type: 'tool_result', tool_use_id: 'toolu_1', content: [{ type: 'text', text: 'seen' }] },
              { type: 'tool_result', tool_use_id: 'toolu_2' },
            ],
          },
          {
            role: 'user',
            content: [
              { type: 'text', text: 'Look:' },
              { type: 'image', source: { data: 'AAAA' } },
            ],
          },
          { role: 'user' },
        ],
      }),
      'anthropic_messages',
      true,
    )
    const reasoning = { adapter: 'anthropic_messages', text: 'Hm.' }
    const call = {
      tool_call_id: idOf('toolu_1'),
      provider_call_id: 'toolu_1',
      tool_name: 'look',
      arguments: '{"a": 1}',
    }
    const messages = [
      message(1, { role: 'system', content: 'Be\nbrief.' }),
      message(2, { content: 'Hello' }),
      message(3, { role: 'assistant', tool_calls: [call], reasoning }),
      message(4, { role: 'tool', content: 'seen', tool_call_id: idOf('toolu_1') }),
      message(5, { content: 'Look:\n[image, 3 bytes]' }),
      message(6, { content: '{"role":"user"}' }),
    ]
    expect(messages.map(each => standing(each, said).stands)).toEqual([
      'here',
      'here',
      'here',
      'here',
      'partly',
      'partly',
    ])
    expect(fitsTogether(messages, 0, said)).toBe(true)
    expect(one(said, 4, { role: 'tool', content: 'seen', tool_call_id: idOf('toolu_9') })).toBe('not')
    expect(one(said, 5, { content: 'Do not look:' })).toBe('not')
    expect(one(said, 3, { role: 'assistant', tool_calls: [call] })).toBe('not')
    expect(one(said, 7, { content: 'One more' })).toBe('not')
  })

  test('items of Responses', () => {
    const said = saidOf(
      JSON.stringify({
        instructions: 'Be brief.',
        input: [
          { role: 'user', content: [{ type: 'input_text', text: 'Hello' }] },
          { type: 'reasoning', summary: [], encrypted_content: 'x' },
          { type: 'function_call', call_id: 'c1', name: 'look', arguments: '{}' },
          { type: 'function_call_output', call_id: 'c1', output: 'seen' },
          { type: 'web_search_call', id: 'w' },
        ],
      }),
      'openai_responses',
      true,
    )
    const tool_calls = [{ tool_call_id: idOf('c1'), provider_call_id: 'c1', tool_name: 'look', arguments: '{}' }]
    const messages = [
      message(1, { role: 'system', content: 'Be brief.' }),
      message(2, { content: 'Hello' }),
      message(3, { role: 'assistant', reasoning: { adapter: 'openai_responses', text: '[encrypted]' } }),
      message(4, { role: 'assistant', tool_calls }),
      message(5, { role: 'tool', content: 'seen', tool_call_id: idOf('c1') }),
      message(6, { role: 'assistant', content: '[web_search_call] {}' }),
    ]
    expect(messages.map(each => standing(each, said).stands)).toEqual([
      'here',
      'here',
      'here',
      'here',
      'here',
      'partly',
    ])
    expect(fitsTogether(messages, 0, said)).toBe(true)
    expect(saidOf('{"input":"Hello"}', 'openai_responses', true).elements).toHaveLength(1)
  })

  test('what is no request says nothing', () => {
    for (const text of ['', '[]', '{"messages":', '"x"']) expect(saidOf(text, 'openai_chat')).toBeNull()
    expect(saidOf('{}', 'another')).toBeNull()
    expect(saidOf('{"messages":{},"tools":7}', 'openai_chat').elements).toEqual([])
  })
})

test('a text of 4 MB is compared at once', () => {
  const text = `${'='.repeat(4 << 20)}\n"end"`
  for (const adapter of ['openai_chat', 'anthropic_messages']) {
    const content = adapter === 'openai_chat' ? text : [{ type: 'text', text }]
    const request = JSON.stringify({ messages: [{ role: 'user', content }] })
    const begun = performance.now()
    const said = saidOf(request, adapter)
    expect(standing(message(1, { content: text }), said).stands).not.toBe('not')
    expect(standing(message(1, { content: `${text}!` }), said).stands).toBe('not')
    expect(performance.now() - begun).toBeLessThan(5_000)
  }
})

test('the id of a call that a provider has named is that of the record', () => {
  expect(idOf('')).toBe('af1349b9-f5f9-a1a6-a040-4dea36dcc949')
})
