/** One word for one thing, in Chinese too: a second word for it is refused. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { expect, test } from 'vitest'

/** The word of the console, what it means, and the words that are not used for it. */
const glossary: [string, string, RegExp][] = [
  ['工作进程', 'worker', /工作者|工人|工作节点|[\p{Script=Han}] ?workers?\b|\bworkers? ?[\p{Script=Han}]/u],
  ['对话记录', 'transcript', /过程|聊天记录|会话记录|\btranscript/u],
  ['父轮次', 'parent turn', /上级|父级|母轮次/u],
  ['子轮次', 'child turn', /下级|子级|孩子/u],
  ['整次运行', 'whole run', /整个运行|全部运行|完整运行/u],
  ['擦除', 'erase', /抹除|抹去|抹掉/u],
  ['profile', 'profile', /角色配置|配置文件|档案|画像/u],
  ['轮次', 'turn', /回合|轮回/u],
  ['卡片', 'card', /卡牌/u],
  ['收据', 'receipt', /回执|凭条/u],
  ['智能体', 'agent', /代理|智能代理/u],
]

const files = readdirSync(import.meta.dirname, { recursive: true, encoding: 'utf8' }).filter(
  name => name.endsWith('words.ts') && name !== 'words.ts',
)
/** What stands between quotes and is Chinese. */
const said = files.flatMap(name => {
  const text = readFileSync(join(import.meta.dirname, name), 'utf8')
  const quoted = [...text.matchAll(/'([^'\n]*)'|`([^`\n]*)`/g)].map(match => match[1] ?? match[2] ?? '')
  return quoted.filter(one => /\p{Script=Han}/u.test(one)).map(one => [name, one] as const)
})

test('there are Chinese words', () => {
  expect(files.length).toBeGreaterThan(5)
  expect(said.length).toBeGreaterThan(300)
  for (const [word] of glossary)
    expect(
      said.some(([, one]) => one.includes(word)),
      word,
    ).toBe(true)
})

test.each(glossary)('%s is the only word for %s', (_, __, others) => {
  expect(said.filter(([, one]) => others.test(one))).toEqual([])
})
