import { describe, expect, it } from 'vitest'
import { stateOf } from '../../parts/look'
import { accept, cost, parse, type Summary, suggest, time } from './filter'

const now = Date.parse('2026-11-18T12:00:00Z')
const turn = (change: Partial<Summary>) => ({ status: 'open', ...change }) as Summary

describe('a filter', () => {
  it('lists roots if it says nothing', () => {
    const filter = parse('  ')
    expect(filter.isEmpty).toBe(true)
    expect(filter.isWrong).toBe(false)
    expect(filter.query(now)).toEqual({ roots: true })
  })

  it('becomes parameters of the list', () => {
    const filter = parse('status:failed profile:editor cost:>0.5 since:2h label:team=blue has:external')
    expect(filter.isWrong).toBe(false)
    expect(filter.query(now)).toEqual({
      roots: true,
      status: 'failed',
      profile: 'editor',
      min_microdollars: 500_000,
      since: '2026-11-18T10:00:00.000Z',
      label: 'team=blue',
      external: true,
    })
  })

  it('keeps what is in quotes together', () => {
    expect(parse('label:"team=deep blue" status:open').query(now)).toMatchObject({
      label: 'team=deep blue',
      status: 'open',
    })
  })

  it('tests rows for what the list cannot filter', () => {
    const filter = parse('waits:person')
    expect(filter.query(now)).toEqual({ open: true })
    expect(filter.passes(turn({ waiting_for: { kind: 'person', since: '' } }))).toBe(true)
    expect(filter.passes(turn({ waiting_for: { kind: 'tool', since: '' } }))).toBe(false)
    expect(parse('waits:tool turns:roots').query(now)).toEqual({ open: true, roots: true })
    expect(parse('status:running').passes(turn({ waiting_for: null }))).toBe(true)
    expect(parse('status:running').passes(turn({ waiting_for: { kind: 'child', since: '' } }))).toBe(false)
    expect(parse('turns:all status:failed').query(now)).toEqual({ status: 'failed' })
  })

  it.each([
    ['bread', 'no_name'],
    ['colour:red', 'unknown_name'],
    ['status:', 'no_value'],
    ['status:fine', 'status'],
    ['cost:<1', 'cost'],
    ['since:yesterday', 'time'],
    ['label:blue', 'label'],
    ['has:salt', 'flag'],
    ['waits:godot', 'waits'],
    ['turns:some', 'turns'],
    ['agent:editor', 'id'],
  ])('says what is wrong with %s', (text, wrong) => {
    const filter = parse(`profile:editor ${text}`)
    expect(filter.tokens.map(token => token.wrong)).toEqual([null, wrong])
    expect(filter.query(now)).toEqual({ roots: true, profile: 'editor' })
  })

  it('takes a name once', () => {
    expect(parse('status:open status:failed').tokens[1]?.wrong).toBe('twice')
    expect(parse('has:external no:external').tokens[1]?.wrong).toBe('twice')
  })
})

it('reads times and money', () => {
  expect(time('15m', now)).toBe(now - 900_000)
  expect(time('2026-11-17', now)).toBe(Date.parse('2026-11-17'))
  expect(time('2026-99-99', now)).toBeNull()
  expect(cost('>=$1.25')).toBe(1_250_000)
  expect(cost('.5')).toBe(500_000)
  expect(cost('much')).toBeNull()
})

it('names the state of a turn', () => {
  expect(stateOf(turn({ status: 'success' }))).toBe('success')
  expect(stateOf(turn({}))).toBe('running')
  expect(stateOf(turn({ waiting_for: { kind: 'person', since: '' } }))).toBe('asks')
  expect(stateOf(turn({ waiting_for: { kind: 'worker', since: '' } }))).toBe('ready')
  expect(stateOf(turn({ waiting_for: { kind: 'child', since: '' } }))).toBe('waiting')
})

describe('suggestions', () => {
  it('offer names, then values', () => {
    expect(suggest('st', 2, []).map(one => one.text)).toEqual(['status:'])
    expect(suggest('status:f', 8, []).map(one => one.text)).toEqual(['status:failed'])
    expect(suggest('status:failed profile:', 22, ['editor', 'publisher']).map(one => one.text)).toEqual([
      'profile:editor',
      'profile:publisher',
    ])
    expect(suggest('label:te', 8, [])).toEqual([])
  })

  it('replace the token at the caret', () => {
    const text = 'sta profile:editor'
    const [first] = suggest(text, 3, [])
    expect(accept(text, first!)).toEqual({ text: 'status: profile:editor', caret: 7 })
    const [value] = suggest('status:fa', 9, [])
    expect(accept('status:fa', value!)).toEqual({ text: 'status:failed ', caret: 14 })
  })
})
