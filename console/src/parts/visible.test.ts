import { expect, test } from 'vitest'
import { visible } from './visible'

test('hidden characters are named, others stay', () => {
  expect(visible('a\u202eb\u200bc')).toEqual(['a', { hidden: 'U+202E' }, 'b', { hidden: 'U+200B' }, 'c'])
  expect(visible('one\n\ttwo\r\n')).toEqual(['one\n\ttwo\r\n'])
  expect(visible('\u{e0041}')).toEqual([{ hidden: 'U+E0041' }])
  expect(visible('a\u034f\u{e0100}')).toEqual(['a', { hidden: 'U+034F' }, { hidden: 'U+E0100' }])
  expect(visible('❤️')).toEqual(['❤️'])
  expect(visible('a\ufe0fb ❤x\ufe0f')).toEqual(['a', { hidden: 'U+FE0F' }, 'b ❤x', { hidden: 'U+FE0F' }])
  expect(visible('\ufe0f😀\ufe0f 1\ufe0f\u20e3 1\ufe0f')).toEqual([
    { hidden: 'U+FE0F' },
    '😀\ufe0f 1\ufe0f\u20e3 1',
    { hidden: 'U+FE0F' },
  ])
  expect(visible('a\u2800b')).toEqual(['a', { hidden: 'U+2800' }, 'b'])
  expect(visible('👩‍🍳 bakes')).toEqual(['👩‍🍳 bakes'])
  expect(visible('\u0000')).toEqual([{ hidden: 'U+0000' }])
  expect(visible('\ud800')).toEqual([{ hidden: 'U+D800' }])
  expect(visible('面包，很好')).toEqual(['面包，很好'])
})
