import type { KeyboardEvent } from 'react'
import style from './parts.module.css'

/** Tabs of a view. The panel carries `id={panel}` and `role="tabpanel"`. */
export function Tabs<T extends string>({
  label,
  tabs,
  chosen,
  choose,
  panel,
}: {
  label: string
  tabs: { id: T; title: string }[]
  chosen: T
  choose: (tab: T) => void
  panel: string
}) {
  const walk = (event: KeyboardEvent<HTMLElement>) => {
    const by = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0
    if (by === 0) return
    event.preventDefault()
    event.stopPropagation()
    const at = tabs.findIndex(tab => tab.id === chosen)
    const next = tabs[(at + by + tabs.length) % tabs.length]
    if (!next) return
    choose(next.id)
    event.currentTarget.querySelectorAll<HTMLElement>('[role=tab]')[tabs.indexOf(next)]?.focus()
  }
  return (
    <div className={style.tabs} role="tablist" aria-label={label} onKeyDown={walk}>
      {tabs.map(tab => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          aria-selected={tab.id === chosen}
          aria-controls={panel}
          tabIndex={tab.id === chosen ? 0 : -1}
          onClick={() => choose(tab.id)}
        >
          {tab.title}
        </button>
      ))}
    </div>
  )
}
