// Runs before the first paint, so that no one sees the other theme flash by.
(() => {
  try {
    const chosen = localStorage.getItem('headscope-theme');
    // colours that the system forces are of its own theme
    if (matchMedia('(forced-colors: active)').matches) return;
    if (chosen === 'light' || chosen === 'dark') document.documentElement.dataset.theme = chosen;
  } catch {
    // without storage the system's own preference holds
  }
})();
