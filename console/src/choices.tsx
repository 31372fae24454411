/** What a person chooses for this browser: language and theme. Nothing else is stored. */
import { createContext, type ReactNode, useContext, useEffect, useState } from 'react'
import { choose, chosen, firstLanguage, type Language, LanguageContext } from './words'

export type Theme = 'light' | 'dark'

function firstTheme(): Theme {
  const asked = new URLSearchParams(location.search).get('theme') ?? chosen('theme')
  if (asked === 'light' || asked === 'dark') return asked
  return matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'
}

interface Chosen {
  theme: Theme
  setTheme(theme: Theme): void
  language: Language
  setLanguage(language: Language): void
}

const ChosenContext = createContext<Chosen | null>(null)

export function useChoices(): Chosen {
  const chosen = useContext(ChosenContext)
  if (!chosen) throw new Error('no choices')
  return chosen
}

export function Choices({ children }: { children: ReactNode }) {
  const [theme, setTheme] = useState(firstTheme)
  const [language, setLanguage] = useState(firstLanguage)
  useEffect(() => {
    document.documentElement.dataset.theme = theme
  }, [theme])
  useEffect(() => {
    document.documentElement.lang = language === 'zh' ? 'zh-CN' : 'en'
  }, [language])
  const chosen = {
    theme,
    setTheme: (next: Theme) => {
      choose('theme', next)
      setTheme(next)
    },
    language,
    setLanguage: (next: Language) => {
      choose('language', next)
      setLanguage(next)
    },
  }
  return (
    <ChosenContext value={chosen}>
      <LanguageContext value={language}>{children}</LanguageContext>
    </ChosenContext>
  )
}
