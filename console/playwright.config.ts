import { defineConfig } from '@playwright/test'

export default defineConfig({
  testDir: 'tests',
  globalSetup: './tests/setup.ts',
  outputDir: process.env.REPORT ?? 'test-results',
  timeout: 60_000,
  // One server and two cores: tests beside each other would measure each other.
  workers: 1,
  retries: 0,
  reporter: [['list']],
  use: {
    viewport: { width: 1280, height: 800 },
    locale: 'en-GB',
    launchOptions: { executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] },
    screenshot: 'only-on-failure',
  },
})
