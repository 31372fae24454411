import { type KeyboardEvent, type Ref, useEffect, useId, useRef, useState } from 'react'
import { accept, parse, suggest } from './filter'
import style from './runs.module.css'
import { useWords } from './words'

/** The filter: typed tokens, completed, and what is wrong with them said below. */
export function FilterBar({
  text,
  apply,
  profiles,
  input,
}: {
  text: string
  apply: (text: string) => void
  profiles: string[]
  input: Ref<HTMLInputElement>
}) {
  const w = useWords()
  const id = useId()
  const field = useRef<HTMLInputElement | null>(null)
  const [typed, setTyped] = useState(text)
  const [caret, setCaret] = useState(0)
  const [isOpen, setOpen] = useState(false)
  const [at, setAt] = useState(-1)
  const caretNext = useRef<number | null>(null)

  // The address changed by other means: a link, or the way back.
  useEffect(() => setTyped(now => (now.trim() === text ? now : text)), [text])
  useEffect(() => {
    if (caretNext.current === null) return
    field.current?.setSelectionRange(caretNext.current, caretNext.current)
    caretNext.current = null
  })
  // Typing settles before the list is asked for.
  useEffect(() => {
    if (typed.trim() === text) return
    const timer = setTimeout(() => apply(typed.trim()), 400)
    return () => clearTimeout(timer)
  }, [typed, text, apply])

  const offered = isOpen ? suggest(typed, caret, profiles) : []
  const choose = (n: number) => {
    const one = offered[n]
    if (!one) return
    const put = accept(typed, one)
    caretNext.current = put.caret
    setTyped(put.text)
    setCaret(put.caret)
    setAt(-1)
    setOpen(true)
    field.current?.focus()
  }
  const press = (event: KeyboardEvent<HTMLInputElement>) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault()
      if (!isOpen) return setOpen(true)
      const n = offered.length
      if (n > 0) setAt((at + (event.key === 'ArrowDown' ? 1 : n)) % n)
    } else if ((event.key === 'Enter' || event.key === 'Tab') && at >= 0) {
      event.preventDefault()
      choose(at)
    } else if (event.key === 'Enter') {
      setOpen(false)
      apply(typed.trim())
    } else if (event.key === 'Escape') {
      if (offered.length > 0) setOpen(false)
      else event.currentTarget.blur()
    }
  }
  // The token that is still being typed is not wrong yet.
  const wrong = parse(typed).tokens.filter(
    token => token.wrong && !(isOpen && token.from <= caret && caret <= token.to),
  )
  return (
    <div className={style.filter} role="search">
      <input
        ref={element => {
          field.current = element
          if (typeof input === 'function') input(element)
          else if (input) input.current = element
        }}
        className="mono"
        role="combobox"
        aria-label={w.filter}
        aria-autocomplete="list"
        aria-expanded={offered.length > 0}
        aria-controls={`${id}l`}
        aria-activedescendant={at >= 0 && offered[at] ? `${id}o${at}` : undefined}
        aria-describedby={wrong.length > 0 ? `${id}w` : undefined}
        aria-invalid={wrong.length > 0}
        autoComplete="off"
        spellCheck={false}
        placeholder={w.filterHint}
        value={typed}
        onChange={event => {
          setTyped(event.target.value)
          setCaret(event.target.selectionStart ?? 0)
          setOpen(true)
          setAt(-1)
        }}
        onSelect={event => setCaret(event.currentTarget.selectionStart ?? 0)}
        onFocus={() => setOpen(true)}
        onBlur={() => setOpen(false)}
        onKeyDown={press}
      />
      <div
        id={`${id}l`}
        role="listbox"
        aria-label={w.suggestions}
        className={style.offers}
        hidden={offered.length === 0}
      >
        {offered.map((one, n) => (
          // biome-ignore lint/a11y/useKeyWithClickEvents: the keys are those of the field
          <div
            key={one.text}
            id={`${id}o${n}`}
            role="option"
            tabIndex={-1}
            aria-selected={n === at}
            className="mono"
            onPointerDown={event => event.preventDefault()}
            onClick={() => choose(n)}
          >
            {one.text}
          </div>
        ))}
      </div>
      {wrong.length > 0 && (
        <div id={`${id}w`} role="status">
          <ul className={style.wrongs}>
            {wrong.map(token => (
              <li key={token.from}>
                <code>{typed.slice(token.from, token.to)}</code>: {w.wrong[token.wrong!]}
              </li>
            ))}
          </ul>
        </div>
      )}
    </div>
  )
}
