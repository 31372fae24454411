import { type ReactNode, useEffect, useId, useRef } from 'react'
import style from './parts.module.css'
import { useWords } from './words'

/** A dialog over the page. The browser keeps the focus in it and closes it with Escape. */
export function Dialog({ title, close, children }: { title: string; close: () => void; children: ReactNode }) {
  const w = useWords()
  const id = useId()
  const box = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const dialog = box.current
    dialog?.showModal()
    return () => dialog?.close()
  }, [])
  return (
    <dialog ref={box} className={style.dialog} aria-labelledby={id} onClose={() => box.current?.open || close()}>
      <header>
        <h2 id={id}>{title}</h2>
        <button type="button" className="plain" onClick={close} aria-label={w.close}>
          ✕
        </button>
      </header>
      {children}
    </dialog>
  )
}
