/** Small parts that every view uses. */
import { useEffect, useState } from 'react'
import { useFormat } from '../words'
import { glyphs, type Look } from './look'
import style from './parts.module.css'
import { useWords } from './words'

export function Status({ status, short = false }: { status: string; short?: boolean }) {
  const w = useWords()
  const shown: Look = status in glyphs ? (status as Look) : status === 'open' ? 'running' : 'waiting'
  return (
    <span className={`${style.status} ${style[shown]}`}>
      <span aria-hidden="true">{glyphs[shown]}</span>
      <span className={short ? 'hidden' : undefined}>{w[shown]}</span>
    </span>
  )
}

/** Copies text, and says so for a moment. */
export function useCopy(): [boolean, (text: string) => void] {
  const [copied, setCopied] = useState(false)
  useEffect(() => {
    if (!copied) return
    const timer = setTimeout(() => setCopied(false), 1_500)
    return () => clearTimeout(timer)
  }, [copied])
  const copy = (text: string) => {
    navigator.clipboard?.writeText(text).then(
      () => setCopied(true),
      () => {},
    )
  }
  return [copied, copy]
}

/** An id: its end is shown, a click copies all of it. */
export function Id({ value, whole = false }: { value: string; whole?: boolean }) {
  const w = useWords()
  const [copied, copy] = useCopy()
  return (
    <button type="button" className={style.id} title={w.copyId(value)} onClick={() => copy(value)}>
      {copied ? w.copied : whole ? value : `…${value.slice(-8)}`}
    </button>
  )
}

/** A time, told from now; the exact time on hover. */
export function Ago({ time }: { time: string | number }) {
  const format = useFormat()
  const [, tick] = useState(0)
  useEffect(() => {
    const timer = setInterval(() => tick(n => n + 1), 10_000)
    return () => clearInterval(timer)
  }, [])
  const iso = new Date(time).toISOString()
  return (
    <time dateTime={iso} title={format.when(time)}>
      {format.ago(time)}
    </time>
  )
}

export function External({ short = false }: { short?: boolean }) {
  const w = useWords()
  return (
    <span className={style.outside} title={w.fromOutsideSays}>
      <span aria-hidden="true">⚠</span> <span className={short ? 'hidden' : undefined}>{w.fromOutside}</span>
    </span>
  )
}

/** A command for the terminal that does the same. */
export function Command({ children }: { children: string }) {
  const w = useWords()
  const [copied, copy] = useCopy()
  return (
    <span className={style.command}>
      <code>{children}</code>
      <button type="button" className="plain" aria-label={w.copyCommand} onClick={() => copy(children)}>
        {copied ? w.copied : w.copy}
      </button>
    </span>
  )
}
