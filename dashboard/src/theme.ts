// Sets the chosen colours before anything is shown. Without a choice the system's apply.
export type Theme = "light" | "dark" | "system";

const KEY = "bullpen-theme";

export function chosenTheme(): Theme {
  const found = localStorage.getItem(KEY);
  return found === "light" || found === "dark" ? found : "system";
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") {
    localStorage.removeItem(KEY);
    delete document.documentElement.dataset["theme"];
  } else {
    localStorage.setItem(KEY, theme);
    document.documentElement.dataset["theme"] = theme;
  }
}

applyTheme(chosenTheme());
