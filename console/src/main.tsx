import { QueryClient, QueryClientProvider } from '@tanstack/react-query'
import { RouterProvider } from '@tanstack/react-router'
import { StrictMode } from 'react'
import { createRoot } from 'react-dom/client'
import { Problem } from './api'
import { Choices } from './choices'
import { makeRouter } from './router'
import './style/base.css'

const queries = new QueryClient({
  defaultOptions: {
    queries: {
      // Events say when something has changed; nothing is asked for again by itself.
      staleTime: Number.POSITIVE_INFINITY,
      gcTime: 60_000,
      refetchOnWindowFocus: false,
      refetchOnReconnect: false,
      retry: (count, error) => error instanceof Problem && error.status >= 500 && count < 2,
    },
  },
})
const router = makeRouter(queries)

const place = document.getElementById('app')
if (place) {
  createRoot(place).render(
    <StrictMode>
      <QueryClientProvider client={queries}>
        <Choices>
          <RouterProvider router={router} />
        </Choices>
      </QueryClientProvider>
    </StrictMode>,
  )
}
