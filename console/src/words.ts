/** The languages of the console, and how it writes numbers and times. */
import { createContext, useContext, useMemo } from 'react'

export type Language = 'en' | 'zh'

/** Returns what was chosen before. A browser may forbid storage. */
export function chosen(name: string): string | null {
  try {
    return localStorage.getItem(`waybill.${name}`)
  } catch {
    return null
  }
}

/** Keeps a choice, if the browser allows it. */
export function choose(name: string, value: string) {
  try {
    localStorage.setItem(`waybill.${name}`, value)
  } catch {
    // It holds for this tab.
  }
}

/** The language of this tab: what the address says (`?lang=zh`), then what was chosen before, then that of the browser. */
export function firstLanguage(): Language {
  const asked = new URLSearchParams(location.search).get('lang') ?? chosen('language')
  if (asked === 'en' || asked === 'zh') return asked
  return navigator.languages.some(one => one.toLowerCase().startsWith('zh')) && !startsEnglish() ? 'zh' : 'en'
}

function startsEnglish(): boolean {
  return navigator.language.toLowerCase().startsWith('en')
}

export const LanguageContext = createContext<Language>('en')
export const useLanguage = () => useContext(LanguageContext)

/** Words in both languages. A sentence that is missing in Chinese does not compile. */
export function words<T extends Record<string, unknown>>(en: T, zh: NoInfer<T>): () => T {
  return () => (useLanguage() === 'zh' ? zh : en)
}

export type Format = ReturnType<typeof format>

export function format(language: Language) {
  const locale = language === 'zh' ? 'zh-CN' : 'en'
  const plain = new Intl.NumberFormat(locale)
  const percent = new Intl.NumberFormat(locale, { style: 'percent' })
  const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 })
  const exact = new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'medium' })
  const clock = new Intl.DateTimeFormat(locale, { timeStyle: 'medium' })
  const relative = new Intl.RelativeTimeFormat(locale, { numeric: 'always', style: 'short' })
  // To make one takes longer than to use it a thousand times.
  const units = new Map<string, Intl.NumberFormat>()
  const unit = (value: number, name: string, digits = 0) => {
    const key = `${name} ${digits}`
    let made = units.get(key)
    if (!made) {
      made = new Intl.NumberFormat(locale, {
        style: 'unit',
        unit: name,
        unitDisplay: 'narrow',
        maximumFractionDigits: digits,
      })
      units.set(key, made)
    }
    return made.format(value)
  }
  const took = (ms: number): string => {
    if (ms < 1_000) return unit(Math.max(0, Math.round(ms)), 'millisecond')
    if (ms < 60_000) return unit(ms / 1_000, 'second', 1)
    if (ms < 3_600_000)
      return `${unit(Math.floor(ms / 60_000), 'minute')} ${unit(Math.floor((ms % 60_000) / 1_000), 'second')}`
    if (ms < 86_400_000)
      return `${unit(Math.floor(ms / 3_600_000), 'hour')} ${unit(Math.floor((ms % 3_600_000) / 60_000), 'minute')}`
    return `${unit(Math.floor(ms / 86_400_000), 'day')} ${unit(Math.floor((ms % 86_400_000) / 3_600_000), 'hour')}`
  }
  return {
    number: (value: number) => plain.format(value),
    tokens: (value: number) => (value < 1_000 ? plain.format(value) : short.format(value).toLowerCase()),
    percent: (share: number) => percent.format(share),
    money: (microdollars: number) => {
      const dollars = microdollars / 1_000_000
      const digits = dollars === 0 || dollars >= 1 ? 2 : dollars >= 0.01 ? 3 : 6
      return `$${dollars.toFixed(digits)}`
    },
    bytes: (value: number) =>
      value < 1_000
        ? unit(value, 'byte')
        : value < 1_000_000
          ? unit(value / 1_000, 'kilobyte', 1)
          : unit(value / 1_000_000, 'megabyte', 1),
    took,
    when: (time: string | number) => exact.format(new Date(time)),
    clock: (time: string | number) => clock.format(new Date(time)),
    ago: (time: string | number, now = Date.now()) => {
      const seconds = Math.round((new Date(time).getTime() - now) / 1_000)
      const size = Math.abs(seconds)
      if (size < 60) return relative.format(Math.min(seconds, 0), 'second')
      if (size < 3_600) return relative.format(Math.trunc(seconds / 60), 'minute')
      if (size < 86_400) return relative.format(Math.trunc(seconds / 3_600), 'hour')
      return relative.format(Math.trunc(seconds / 86_400), 'day')
    },
  }
}

export function useFormat(): Format {
  const language = useLanguage()
  return useMemo(() => format(language), [language])
}
